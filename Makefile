# Every target installs what it needs and does nothing the second time.
#
#   make demo       fit a photograph with a hole, and ask four uncertainties where it was (a picture in out/)
#   make test       the tests, on every backend that this machine has
#   make test-slow  the tests that run whole programs: benchmarks, examples, pytest itself
#   make test-cpus  every layer and gradient in both precisions, compiled for other processors than this one
#   make test-torch  the tests of the module for PyTorch and of several processes, with PyTorch, which they install
#   make test-export  exported shaders, run by Vulkan, wgpu, slangpy and a browser, all of which it installs
#   make drjit-check  the tests of what coopnet assumes of Dr.Jit beyond its documentation; with DRJIT_SOURCE also Dr.Jit's
#                     own tests of networks, with the layers of coopnet in place of its own
#   make lint       ruff and mypy
#   make docs       the site, in out/site; warnings, links that lead nowhere and pictures without words are errors. Runs
#                   the tutorials whose script, or the library's code that they use, has changed (scripts/pages/stale.py):
#                   all of them take 9 minutes of a processor. scripts/look_at_site.py looks at the site in a browser
#   make pictures   draws docs/images anew
#   make gpu-test   the tests with the Python on PATH: for GPU machines that come with their own packages
#   make bench      coopnet against drjit.nn and PyTorch on the CPU: figures, plots, tables
#   make gpu-bench  the same on the GPU, with the Python on PATH
#   make release-check  wheel and sdist: the same bits twice, metadata, empty environments of PYTHONS; they stay in dist/
#   make release  all that a release is checked for, one after the other; release-check is its last part. With VERSION=0.2.0
#                   it makes the release: sets the version, commits, checks, tags, and says the two commands that publish it
#   make ranges-check  the lowest and the highest versions of dependencies that pyproject.toml accepts
#   make mutants    mutation testing: which changes of the library would no test notice? (hours on two cores)
#   make setup      only install
#
# PYTHON names the interpreter that the virtual environment is made with (and that gpu-test and gpu-bench run).
# DRJIT is a version of Dr.Jit to check, in an environment of its own: make drjit-check DRJIT=1.6.0
# DRJIT_SOURCE is a copy of Dr.Jit's repository at that version: make drjit-check DRJIT_SOURCE=../drjit
# PYTHONS are interpreters for release-check, such as "python3.10 python3.14".
# GALLERY=0 leaves the tutorials out of make docs: what remains takes half a minute.
# BUDGET is the number of seconds after which a benchmark measures no more.
# MUTANTS are options of scripts/mutants.py, such as "--sample 20 --files coopnet/nn/*".

PYTHON ?= python3
BIN := .venv/bin
BUDGET ?= 400
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup system docs pictures demo test test-slow test-cpus test-torch test-export drjit-check lint gpu-test bench gpu-bench release-check \
	ranges-check release mutants clean
.DEFAULT_GOAL := setup

setup: system .venv/.installed

system:
	@sh scripts/setup-system.sh "$(PYTHON)"

.venv/.installed: pyproject.toml | system
	@test -x $(BIN)/pip || "$(PYTHON)" -m venv --clear .venv
	$(BIN)/pip install --quiet --editable ".[dev]"
	@touch $@

demo: setup
	$(BIN)/python examples/unseen.py

# Two processes: Dr.Jit itself uses every core, more only compete. A file stays in one process; long ones come first (conftest.py).
# What test-torch runs is left to it, also where PyTorch is installed. Tests start many processes, which import what one
# of them has compiled.
TORCH_TESTS := tests/interop/test_torch.py $(addprefix tests/training/distributed/test_,equal_curves.py faults.py restarts.py)

test: setup
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "not slow" $(addprefix --ignore=,$(TORCH_TESTS)) tests

test-slow: setup
	$(BIN)/python -m pytest -q -n 2 -m slow tests

# Processors without half-precision arithmetic. The machine needs what the second one has, AVX-512; otherwise only the
# first is played. Any other: COOPNET_TARGET=znver4:16 make test
CPUS := haswell:8 $(if $(shell grep -m1 -o avx512vl /proc/cpuinfo 2>/dev/null),skylake-avx512:16)
CPU_TESTS := $(patsubst %,tests/%.py,jit/test_half jit/test_lanes $(addprefix nn/test_,contracts derivative_rules embedding encodings layers weights))

test-cpus: setup
	@for cpu in $(CPUS); do \
	    COOPNET_TARGET=$$cpu $(BIN)/python -m pytest -q -n 2 --dist loadfile $(CPU_TESTS) || exit 1; \
	done

# What a new version of Dr.Jit may break first. The header of the output says which version is installed, and which one
# the assumptions were checked with (coopnet/jit/__init__.py). A test that ends the process has failed, and others go on.
DRJIT_TESTS := tests/jit $(patsubst %,tests/engine/test_%.py,control_flow cuda_on_cpu freezing loops)
DRJIT_ENV := $(if $(DRJIT),out/drjit-$(DRJIT),.venv)

out/drjit-%/.installed: | system
	@test -x $(@D)/bin/pip || "$(PYTHON)" -m venv --clear $(@D)
	$(@D)/bin/pip install --quiet drjit==$* numpy pytest pytest-timeout pytest-xdist hypothesis
	@touch $@

drjit-check: system $(DRJIT_ENV)/.installed
	PYTHONPATH=. $(DRJIT_ENV)/bin/python -m pytest -n 2 -p no:support.lost_workers --max-worker-restart 99 $(DRJIT_TESTS)
ifdef DRJIT_SOURCE
	cd "$(DRJIT_SOURCE)/tests" && PYTHONPATH="$(CURDIR):$(CURDIR)/tests" "$(CURDIR)/$(DRJIT_ENV)/bin/python" -m pytest \
	    -q -p support.in_place_of_drjit -p no:cacheprovider test_nn.py test_coop_vec.py test_hashgrid.py
endif

.venv/.docs: .venv/.installed
	$(BIN)/pip install --quiet --editable ".[docs,mitsuba,torch]"
	@touch $@

docs: setup .venv/.docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html $(if $(filter 0,$(GALLERY)),-D plot_gallery=0) docs out/site
	$(BIN)/python scripts/check_links.py out/site

pictures: setup .venv/.docs
	PYTHONPATH=. $(BIN)/python scripts/draw_site.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy coopnet

# GPU machines often have no internet and a Python of their own, with drjit, numpy, pytest and what else they
# offer: no virtual environment, nothing installed. Both backends; of whole programs those that run on the GPU. Most of the
# time goes into compiling, which sixteen processes share. A test that ends its process has failed, and others go on.
gpu-test:
	"$(PYTHON)" -m pytest -q -n 16 --dist worksteal -p no:support.lost_workers --max-worker-restart 40 -k "cuda or not slow" tests

.venv/.torch: .venv/.installed
	$(BIN)/pip install --quiet torch==2.13.0
	@touch $@

test-torch: setup .venv/.torch
	$(BIN)/python -m pytest -q $(TORCH_TESTS)

# Shaders run on the CPU: on Mesa's lavapipe, and in a browser on SwiftShader.
.venv/.export: .venv/.installed
	@sh scripts/setup-shaders.sh
	$(BIN)/pip install --quiet --editable ".[dev,export]"
	@touch $@

test-export: setup .venv/.export
	$(BIN)/python -m pytest -q tests/interop/test_export*.py tests/mitsuba3/test_export*.py

bench: setup .venv/.torch
	$(BIN)/python benchmarks/networks.py --backend llvm --budget $(BUDGET)
	$(BIN)/python benchmarks/memory.py --backend llvm --budget $(BUDGET)
	$(BIN)/python benchmarks/plots.py
	$(BIN)/python benchmarks/table.py

gpu-bench:
	PYTHONPATH=. "$(PYTHON)" benchmarks/networks.py --backend cuda --budget $(BUDGET)
	PYTHONPATH=. "$(PYTHON)" benchmarks/memory.py --backend cuda --budget $(BUDGET)
	"$(PYTHON)" benchmarks/plots.py
	"$(PYTHON)" benchmarks/table.py

.venv/.mutants: .venv/.installed
	$(BIN)/pip install --quiet --editable ".[mutants]"
	@touch $@

mutants: setup .venv/.mutants
	$(BIN)/python scripts/mutants.py $(MUTANTS)

.venv/.release: .venv/.installed
	$(BIN)/pip install --quiet build "hatchling>=1.27" uv
	@touch $@

PYTHONS ?= $(PYTHON)
RELEASE_PARTS := lint test test-slow test-cpus test-torch docs release-check
release-check: setup .venv/.release
	$(BIN)/python scripts/release.py --pythons "$(PYTHONS)"

# As makes of their own: in this order also with make -j, and nothing after a failure. A variable VERSION of the
# environment makes no release.
release:
ifeq ($(origin VERSION),command line)
	@test -z "$$(git status --porcelain)" || { echo "coopnet: there are changes that are not committed" >&2; exit 1; }
	"$(PYTHON)" scripts/version.py "$(VERSION)"
	git commit --quiet --all --message "Version $(VERSION)"
endif
	for part in $(RELEASE_PARTS); do $(MAKE) $$part || exit 1; done
ifeq ($(origin VERSION),command line)
	git tag --annotate "v$(VERSION)" --message "Version $(VERSION)"
	@echo "coopnet: v$(VERSION) is tagged. To publish it: git push --follow-tags && twine upload dist/*"
endif

ranges-check: setup .venv/.release
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/ranges.py --python "$(PYTHON)"

clean:
	rm -rf .venv out build dist docs/gallery .pytest_cache .mypy_cache .ruff_cache .hypothesis
