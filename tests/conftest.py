"""Every test runs in float64 and with strict promotion: a silent cast or broadcast is an error."""

import gc
import os
import re
import shutil
import tempfile

# Nearly all of the time goes into compiling: let XLA optimise less, and make its code without the emitters that set up
# a world of their own for every fusion (with them, the tests take nearly twice as long). The eight devices, all of this
# processor, are for tests/test_sharded.py. All of it is read when JAX starts.
QUICK = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", f"{QUICK} --xla_force_host_platform_device_count=8")

# Programs of the learner are kept on disk, but not those of tests.
os.environ.setdefault("SNAPGRAD_CACHE", "off")

# What one process of these tests has compiled, the others find: workers, and the programs that tests start.
COMPILED = None
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    COMPILED = tempfile.mkdtemp(prefix="snapgrad-tests-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = COMPILED
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

gc.set_threshold(200_000, 20, 1000)  # JAX keeps millions of objects for as long as its programs: do not look so often

from learners import INPUTS, SETTINGS
from networks import CELLS
from xdist.scheduler import LoadScopeScheduling

import snapgrad as sg


class OneNetworkInOneProcess(LoadScopeScheduling):
    """Keeps the tests of one network together, because they share compiled functions and oracles."""

    def _split_scope(self, nodeid):
        words = re.split(r"[\[\]-]", nodeid)
        names = [word for word in words if word in CELLS]
        return f"{names[0]}-{'dense' in words}" if names else nodeid


def pytest_collection_modifyitems(items):
    """What takes minutes comes first: at the end others would wait for it. What empties JAX's caches comes last."""
    places = {
        "test_every_smoke_passes_and_is_drawn": -1,
        "test_a_compiled_program_keeps_its_plan_when_others_have_let_go": 1,
    }
    items.sort(key=lambda item: places.get(item.name, 0))


def pytest_unconfigure():
    if COMPILED is not None:  # only in the process that made it
        shutil.rmtree(COMPILED, ignore_errors=True)


def pytest_xdist_make_scheduler(config, log):
    config.option.loadscopereorder = False  # xdist would put whatever is alone in its scope last
    return OneNetworkInOneProcess(config, log)


@pytest.fixture(scope="module")
def fresh():
    """A learner before its first sample; tests take copies, which share what is compiled."""
    return sg.OnlineLearner(INPUTS, 1, **SETTINGS)


@pytest.fixture(scope="module")
def pair():
    """The same for two lanes."""
    return sg.OnlineLearner(INPUTS, 1, lanes=2, **SETTINGS)
