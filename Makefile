# `make audit` and `make test` set everything up themselves; a second run starts at once.
PYTHON ?= python3
VENV := .venv
# Releases of transformers that CI tests beside the newest one, which is in $(VENV).
OLDEST := 4.57.6
OLDER := $(OLDEST) 5.23.0
PIP = -m pip install --quiet --disable-pip-version-check --no-compile
# uv takes the CPU build of torch. Without uv it is the build of the index: the public one requires CUDA packages on
# Linux, unless PIP_EXTRA_INDEX_URL names PyTorch's own index of CPU builds.
WITHOUT_UV := uv is missing: torch comes from the index of pip, on Linux the public one brings CUDA packages
WITHOUT_UV += (docs/start.md)
UV := $(shell command -v uv)
UV_PIP = $(UV) pip install --quiet --torch-backend cpu --python
install = $(if $(UV),$(UV_PIP) $(1)/bin/python,$(1)/bin/python $(PIP))
pinned = $(install) --constraint constraints.txt
# Neither installer compiles on several cores. Here it takes a few seconds, and then no later command compiles torch and
# transformers again in each process, whatever PYTHONDONTWRITEBYTECODE says. Of their models few are ever imported.
compile = -$(1)/bin/python -m compileall -qq -j 0 -x '/transformers/models/|/testing/|/tests/' $(call site,$(1))
site = "$$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
say_index = @$(if $(UV),:,echo '$(WITHOUT_UV)')

# eqcheck's own modules are compiled once, when they are first imported; without this, in every process.
unexport PYTHONDONTWRITEBYTECODE

ENGINES := openvino_genai vllm mlx_vlm mlx_lm llama_cpp onnxruntime_genai mistralrs

.PHONY: audit showcase test test-all test-long test-oldest test-older test-newest golden golden-write figures house gate-test lint docs bench speed comparison architectures engines engines-test cluster-test newcomer dist release clean

audit: $(VENV)/.installed
	$(VENV)/bin/eqcheck audit --allow-known --cases 60 --jobs 2

# The reports that the README shows; its sample is the first violation of bsp (tests/house/test_readme.py).
showcase: $(VENV)/.installed
	$(VENV)/bin/eqcheck audit bsp dsd hf_pr --allow-known --no-corpus --cases 150 --out reports/showcase

# One thread each: more would only wait for each other. Three processes on two cores, since some tests wait for others.
# Each takes tests that stand together (worksteal): what they have drawn and loaded serves the next one.
test test-all test-long test-older test-newest: export OMP_NUM_THREADS = 1

# Three tiers of tests, which markers in the files name (tests/conftest.py). The golden net is in the first two.
test: $(VENV)/.installed
	$(VENV)/bin/python -m pytest -n 3 -m "not rest and not long" --dist worksteal

test-all: $(VENV)/.installed
	$(VENV)/bin/python -m pytest -n 3 -m rest --dist worksteal

test-long: $(VENV)/.installed
	$(VENV)/bin/python -m pytest -n 3 -m long --dist worksteal

# What depends on the release of transformers or torch.
OF_RELEASES = tests/transparent/test_cache_names.py \
	tests/transparent/test_hashlm.py \
	tests/transparent/test_known_good.py \
	tests/transparent/test_engines.py \
	tests/transparent/test_wild.py \
	"tests/transparent/test_adapters.py::test_right_decoders_have_no_undeclared_violation[transformers]"
BY_HAND_5.23.0 = tests/house/test_by_hand.py

test-older: $(OLDER:%=test-transformers-%)
test-oldest: test-transformers-$(OLDEST)

test-transformers-%: .venv-transformers-%/.installed
	OMP_NUM_THREADS=1 .venv-transformers-$*/bin/python -m pytest -n 2 $(OF_RELEASES) $(BY_HAND_$*)

# Without uv, or an index of CPU builds, this downloads a build with CUDA, some 5 GB with the packages that it needs.
test-newest: .venv-torch/.installed
	.venv-torch/bin/python -m pytest -n 2 $(OF_RELEASES)

# The golden net (tests/golden): what 400 cases and the commands give, compared with what is stored; or stored anew. With
# GROUPS='commands reports' these groups alone.
golden: $(VENV)/.installed
	PYTHONPATH=tests/tools:tests OMP_NUM_THREADS=1 $(VENV)/bin/python -m golden $(GROUPS)

golden-write: $(VENV)/.installed
	PYTHONPATH=tests/tools:tests OMP_NUM_THREADS=1 $(VENV)/bin/python -m golden --write $(GROUPS)

# The figures of CONTRIBUTING.md, measured here and now, which takes a quarter of an hour on two idle cores; with
# FIGURES='readme docs' these alone.
figures: $(VENV)/.installed
	PYTHONPATH=tests/tools OMP_NUM_THREADS=1 $(VENV)/bin/python tests/tools/figures.py $(FIGURES)

# The shape of the package in numbers: lines, files, comments, short and complex functions, names that occur twice.
house: $(VENV)/.installed
	PYTHONPATH=tests/tools:tests/house $(VENV)/bin/python tests/tools/house.py

# The gate on servers of the trained pair: eleven planted faults, and right ones (tests/tools/gate_servers/measure.py).
gate-test: $(VENV)/.installed
	PYTHONPATH=.:tests/tools OMP_NUM_THREADS=1 $(VENV)/bin/python -m gate_servers.measure --right 12 --jobs 2

lint: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# The site, in build/docs. NO_MKDOCS_2_WARNING leaves out the theme's word on its successor.
docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict

# The engines of this repository on the small trained pair, timed and verified: an hour, into reports/bench. With
# BENCH=--quick it takes 4 minutes and writes reports/bench-quick; BENCH=--help has the other options.
bench: $(VENV)/.installed
	$(VENV)/bin/python -m benchmarks $(BENCH)

# What a case costs, on one thread.
speed: $(VENV)/.installed
	$(VENV)/bin/python -m pytest -p no:xdist tests/speed

comparison: $(VENV)/.installed
	PYTHONPATH=tests/tools $(VENV)/bin/python -m comparison --jobs 2

# The oracle on each architecture of transformers that can be built small, in three dtypes: half an hour on two cores.
architectures: $(VENV)/.installed
	PYTHONPATH=tests/tools OMP_NUM_THREADS=1 $(VENV)/bin/python -m architectures

# The engines that `eqcheck audit openvino_genai vllm` runs, each in an environment of its own.
engines: $(VENV)/.installed $(ENGINES:%=.venv-%/.installed)

engines-test: engines
	$(VENV)/bin/python -m pytest tests/installed

# A Ray cluster of three nodes on this machine, one of which is killed, and the coordinator too.
cluster-test: $(VENV)/.with-ray
	$(VENV)/bin/python -m pytest -p no:xdist tests/cluster

$(VENV)/.with-ray: $(VENV)/.installed
	$(call pinned,$(VENV)) --editable '.[dev,ray]'
	touch $@

# The commands of README and of the start page, with the installation, in a fresh clone and an empty HOME, without uv.
newcomer: $(VENV)/.installed
	PYTHONPATH=tests/tools $(VENV)/bin/python -m newcomer

# What would be published: built, the wheel from the sdist, and checked. tests/house/test_dist.py does the same.
dist: $(VENV)/.installed
	rm -rf dist
	$(VENV)/bin/python -m build --no-isolation
	$(VENV)/bin/twine check --strict dist/*
	$(VENV)/bin/check-wheel-contents dist/*.whl

# Built and checked, and then the list of what a person has to do; it uploads nothing.
release: lint dist
	$(VENV)/bin/python docs/release.py

clean:
	rm -rf $(VENV) $(OLDER:%=.venv-transformers-%) .venv-torch $(ENGINES:%=.venv-%)

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("eqcheck needs Python 3.10 or newer" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(say_index)
	$(call pinned,$(VENV)) --editable '.[dev]'
	$(call compile,$(VENV))
	touch $@

# All but transformers, and what it needs in other versions, comes from $(VENV). pip looks there too, uv does not.
overlay = echo "import site; site.addsitedir('$(call site,$(VENV))')" > $(call site,$(1))/base.pth

.PRECIOUS: .venv-%/.installed .venv-transformers-%/.installed
.venv-transformers-%/.installed: $(VENV)/.installed
	$(PYTHON) -m venv .venv-transformers-$*
	$(call overlay,.venv-transformers-$*)
	.venv-transformers-$*/bin/python $(PIP) 'transformers==$*'
	$(call compile,.venv-transformers-$*)
	touch $@

.venv-torch/.installed: $(VENV)/.installed
	$(PYTHON) -m venv .venv-torch
	$(say_index)
	$(call overlay,.venv-torch)
	$(call install,.venv-torch) --upgrade torch
	$(call compile,.venv-torch)
	touch $@

.venv-%/.installed: environments/%.txt
	$(PYTHON) -c 'import sys; sys.exit("the engines need Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv-$*
	$(say_index)
	$(call install,.venv-$*) --no-deps --requirement environments/$*.txt
	$(call compile,.venv-$*)
	touch $@
