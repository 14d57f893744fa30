"""Every test runs in float64 and with strict promotion: a silent cast or broadcast is an error."""

import os

# Nearly all of the time goes into compiling: let XLA optimise less. It is read when JAX starts.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

from networks import SPARSE


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items):
    """Keeps tests of one network in one process, where they share compiled functions and oracles."""
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if "name" in params:
            item.add_marker(pytest.mark.xdist_group(f"{params['name']}-{params.get('sparsity', SPARSE)}"))
