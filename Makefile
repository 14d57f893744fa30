# make test   sets up .venv and runs the test suite
# make test-all   the same with every combination of its cases
# make lint   sets up .venv and runs ruff and mypy
# make sanitize   runs the tests of the native part under AddressSanitizer and UndefinedBehaviorSanitizer
# make kill-test   kills a run a hundred times at random moments and resumes it, some minutes
# make soak   two million samples through one learner: memory, latency, recompilation; some minutes
# make demo   sets up .venv and shows a sparse GRU learn online, beside backpropagation
PYTHON ?= python3
BIN := .venv/bin

.PHONY: test test-all lint sanitize kill-test soak demo clean

test: .venv/ready
	$(BIN)/python -m pytest -n auto

test-all: .venv/ready
	$(BIN)/python -m pytest -n auto -m ""

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# -S: without the editable install of .venv, so that the sanitized build is the one that is imported. In one process: workers of
# pytest-xdist would be started without -S.
sanitize: .venv/ready
	rm -rf build/sanitized
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/sanitized \
	  --config-settings=cmake.define.SNAPGRAD_SANITIZE=ON --config-settings=cmake.build-type=None \
	  --config-settings=build-dir=build/sanitize .
	PYTHONPATH=build/sanitized:$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
	  LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 \
	  $(BIN)/python -S -m pytest -n 0 -m "" tests/test_native.py tests/test_adam.py tests/test_unit_step.py

kill-test: .venv/ready
	$(BIN)/python tests/kills.py --kills 100

soak: .venv/ready
	$(BIN)/python benchmarks/soak.py

demo: .venv/ready
	$(BIN)/snapgrad demo

.venv/ready: pyproject.toml CMakeLists.txt $(wildcard native/*)
	$(PYTHON) -c 'import sys; sys.exit("snapgrad needs Python 3.11 or newer; try: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[train,tensorboard,test,lint]'
	touch $@

clean:
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .hypothesis
