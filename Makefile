# `make audit` and `make test` set everything up themselves; a second run starts at once.
PYTHON ?= python3
VENV := .venv
OLDEST := .venv-4.57
PIP = -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
# uv takes the CPU build of torch. Without uv it is the build of the index: the public one requires CUDA packages on
# Linux, unless PIP_EXTRA_INDEX_URL names PyTorch's own index of CPU builds.
WITHOUT_UV := uv is missing: torch comes from the index of pip, on Linux the public one brings CUDA packages
WITHOUT_UV += (docs/start.md)
UV := $(shell command -v uv)
UV_PIP = $(UV) pip install --quiet --torch-backend cpu --constraint constraints.txt --python
install = $(if $(UV),$(UV_PIP) $(1)/bin/python,$(1)/bin/python $(PIP))
say_index = @$(if $(UV),:,echo '$(WITHOUT_UV)')

# What is imported is compiled once, when it is first imported; without this, in every process.
unexport PYTHONDONTWRITEBYTECODE

ENGINES := openvino_genai vllm mlx_vlm mlx_lm llama_cpp onnxruntime_genai

.PHONY: audit showcase test test-all test-long tiers test-oldest golden golden-write gate-test lint docs bench comparison engines engines-test cluster-test newcomer dist release clean

audit: $(VENV)/.installed
	$(VENV)/bin/eqcheck audit --allow-known --cases 150 --jobs 2

# The reports that the README shows; its sample is the first violation of bsp (tests/test_readme.py).
showcase: $(VENV)/.installed
	$(VENV)/bin/eqcheck audit bsp dsd hf_pr --allow-known --no-corpus --cases 150 --out reports/showcase

# One thread each: more would only wait for each other. Three processes on two cores, since some tests wait for others.
# Each takes tests that stand together (worksteal): what they have drawn and loaded serves the next one.
test test-all test-long tiers test-oldest: export OMP_NUM_THREADS = 1

# The quick tier, and the rest (tests/tiers.py).
test: $(VENV)/.installed
	$(VENV)/bin/python -m pytest -n 3 -m "not rest and not long" --dist worksteal

test-all: $(VENV)/.installed
	$(VENV)/bin/python -m pytest -n 3 -m rest --dist worksteal

# The longest tests (tests/long.json): more of the matrices that the rest begins.
test-long: $(VENV)/.installed
	$(VENV)/bin/python -m pytest -n 3 -m long --dist worksteal

# Divide the tests anew, by the seconds that each takes in a whole run.
tiers: $(VENV)/.installed
	mkdir -p build
	$(VENV)/bin/python -m pytest --collect-only -q > build/tests.txt
	$(VENV)/bin/python -m pytest -n 3 --dist worksteal --durations=0 --durations-min=0.05 > build/durations.txt
	PYTHONPATH=tests $(VENV)/bin/python -m tiers build/durations.txt build/tests.txt

test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python -m pytest -n 2 tests/test_hashlm.py tests/test_known_good.py tests/test_engines.py \
		tests/test_wild.py "tests/test_adapters.py::test_right_decoders_have_no_undeclared_violation[transformers]"

# The golden net (tests/golden): what 300 cases and the commands give, compared with what is stored; or stored anew.
golden: $(VENV)/.installed
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(VENV)/bin/python -m golden

golden-write: $(VENV)/.installed
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(VENV)/bin/python -m golden --write

# The gate on servers of the trained pair: eleven planted faults, and right ones (tests/gate_servers/measure.py).
gate-test: $(VENV)/.installed
	PYTHONPATH=.:tests OMP_NUM_THREADS=1 $(VENV)/bin/python -m gate_servers.measure --right 12 --jobs 2

lint: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# The site, in build/docs. NO_MKDOCS_2_WARNING leaves out the theme's word on its successor.
docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict

bench: $(VENV)/.installed
	$(VENV)/bin/python -m pytest -p no:xdist tests/speed

comparison: $(VENV)/.installed
	PYTHONPATH=tests $(VENV)/bin/python -m comparison --jobs 2

# The engines that `eqcheck audit openvino_genai vllm` runs, each in an environment of its own.
engines: $(VENV)/.installed $(ENGINES:%=.venv-%/.installed)

engines-test: engines
	$(VENV)/bin/python -m pytest tests/engines

# A Ray cluster of three nodes on this machine, one of which is killed, and the coordinator too.
cluster-test: $(VENV)/.with-ray
	$(VENV)/bin/python -m pytest -p no:xdist tests/cluster

$(VENV)/.with-ray: $(VENV)/.installed
	$(call install,$(VENV)) --editable '.[dev,ray]'
	touch $@

# The commands of README and of the start page, with the installation, in a fresh clone and an empty HOME, without uv.
newcomer: $(VENV)/.installed
	PYTHONPATH=tests $(VENV)/bin/python -m newcomer

# What would be published: built, the wheel from the sdist, and checked. tests/test_dist.py does the same.
dist: $(VENV)/.installed
	rm -rf dist
	$(VENV)/bin/python -m build --no-isolation
	$(VENV)/bin/twine check --strict dist/*
	$(VENV)/bin/check-wheel-contents dist/*.whl

# Built and checked, and then the list of what a person has to do; it uploads nothing.
release: lint dist
	$(VENV)/bin/python docs/release.py

clean:
	rm -rf $(VENV) $(OLDEST) $(ENGINES:%=.venv-%)

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("eqcheck needs Python 3.10 or newer" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(say_index)
	$(call install,$(VENV)) --editable '.[dev]'
	touch $@

$(OLDEST)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(OLDEST)
	$(say_index)
	$(call install,$(OLDEST)) 'transformers==4.57.6' --editable '.[test]'
	touch $@

.venv-%/.installed: environments/%.txt
	$(PYTHON) -c 'import sys; sys.exit("the engines need Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv-$*
	$(say_index)
	$(call install,.venv-$*) --no-deps --requirement environments/$*.txt
	touch $@
