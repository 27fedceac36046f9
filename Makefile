# make compare            compare the ways on this machine      (OP=softmax ARGS='--case M=64,N=781,fp16')
# make serve              a page in which you edit a kernel and run it                        (ARGS='--port 9000')
# make test               lint, types, and the tests that convince without a GPU: minutes
# make test-rest          what `make test` leaves out and continuous integration runs after it
# make test-all           everything that needs no GPU (before a release or a change of compilers)
# make test-gpu           the tests that need a GPU; fails if none ran                       (LESS= for all of them)
# make lint | format      check | fix the style; lint checks types and imports too
# make fuzz               five minutes of hostile arguments, records and answers of workers
# make mutations          seed every bug of tests/mutations/, and record what catches it     (ARGS=--missing)
# make docs               write the generated tables and pictures of README.md and docs/
# make handout            build/handout.tar.gz: the project without the labs' solutions and instructors' notes
# make gradescope LAB=01  build/gradescope_01.zip: Gradescope's autograder of a lab, for the tier without a GPU
# make clean              remove what make has made
#
# Each makes .venv and installs what it needs first.  Two switches:
#   PYTHON=python3.12     make .venv with this Python
#   PY=python3            use this environment as it is: make no .venv, install nothing

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.SECONDARY:

# pip compiles no bytecode, since most of it is never imported; so each process would compile PyTorch anew without this.
export PYTHONDONTWRITEBYTECODE :=

OP ?= softmax
LAB ?= 01
FOR_INSTRUCTORS := ':!labs/solutions' ':!labs/*/instructor.md' ':!labs/*/rubric.toml'
ARGS ?=
PY ?=
JOBS ?= 2
GPU_JOBS ?= 4
PYTEST_ARGS ?=
LESS := not exhaustive
FUZZ_EXAMPLES ?= 5000

# torch 2.13's own Triton is in .venv; these legs run beside it.
TRITONS ?= 3.6.0 newest

ifeq ($(PY),)
  RUN := .venv/bin/python
  CLANG_FORMAT := .venv/bin/clang-format
  LINT_IMPORTS := .venv/bin/lint-imports
  ENV := .venv/installed
else
  RUN := $(PY)
  CLANG_FORMAT := clang-format
  LINT_IMPORTS := lint-imports
  ENV :=
endif
CXX_FILES := $(wildcard $(foreach ending,cuh cu h cpp,cuda_impl/*/*.$(ending) cuda_impl/*/*/*.$(ending)) \
	compare/aot/program/*.[ch] tests/support/fake_cuda/*.c)

.PHONY: help install compare serve test test-quick test-rest test-all test-gpu test-triton lint style imports types format fuzz mutations \
	docs handout gradescope clean

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

install: $(ENV)

compare: $(ENV)
	@$(RUN) -m compare $(OP) $(ARGS)

serve: $(ENV)
	@$(RUN) -m compare serve $(ARGS)

PYTEST := $(RUN) -m pytest -n $(JOBS) --dist worksteal

# mypy takes one core while the tests take both.
test: style imports
	@$(MAKE) --no-print-directory --jobs=2 types test-quick

test-quick: $(ENV)
	$(PYTEST) -m 'not gpu and not thorough and not exhaustive' $(PYTEST_ARGS)

# Each Triton's tests take one core, side by side.
test-rest: $(ENV)
	$(PYTEST) -m 'not gpu and $(if $(LESS),thorough and not exhaustive,(thorough or exhaustive))' $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory --jobs=$(JOBS) --output-sync JOBS=0 LESS='$(LESS)' test-triton

test-all: test
	@$(MAKE) --no-print-directory LESS= test-rest

test-gpu: $(ENV)
	$(RUN) -m pytest -n $(GPU_JOBS) -m 'gpu and not alone$(if $(LESS), and $(LESS))' --require-gpu $(PYTEST_ARGS)
	$(RUN) -m pytest -n 1 -m 'gpu and alone$(if $(LESS), and $(LESS))' --require-gpu $(PYTEST_ARGS)

test-triton: $(TRITONS:%=test-triton-%)

test-triton-%: .tritons/%/installed $(ENV)
	PYTHONPATH=$(CURDIR)/$(<D) TRITON_LEG=$(CURDIR)/$(<D) $(RUN) -m pytest -n $(JOBS) --dist worksteal -m '$(LESS)' tests/pipeline/test_triton_versions*.py tests/tools/test_triton_limits.py $(PYTEST_ARGS)

lint: style imports types

imports: $(ENV)
	$(LINT_IMPORTS) --no-logo --no-cache

types: $(ENV)
	$(RUN) -m mypy

style: $(ENV)
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(CLANG_FORMAT) --dry-run --Werror $(CXX_FILES)

format: $(ENV)
	$(RUN) -m ruff check --fix
	$(RUN) -m ruff format
	$(CLANG_FORMAT) -i $(CXX_FILES)

fuzz: $(ENV)
	FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(RUN) -m pytest -n $(JOBS) --timeout 900 tests/test_fuzz.py $(PYTEST_ARGS)

mutations: $(ENV)
	PYTHONPATH=$(CURDIR):$(CURDIR)/tests:$(CURDIR)/tests/support $(RUN) -m mutations $(ARGS)

docs: $(ENV)
	$(RUN) -m tools.docs.blocks

# Both hold the last commit, and so no file that is not in git.
handout: | build
	git archive --format=tar.gz -o build/handout.tar.gz --prefix=gpu-three-ways/ HEAD . $(FOR_INSTRUCTORS)

gradescope: | build
	git archive --format=zip -o build/gradescope_$(LAB).zip --add-virtual-file=lab:$(LAB) \
		--add-file=labs/gradescope/setup.sh --add-file=labs/gradescope/run_autograder \
		--prefix=project/ HEAD . $(FOR_INSTRUCTORS)

build:
	mkdir -p build

clean:
	rm -rf .venv .tritons build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/installed: requirements.txt requirements-dev.txt constraints.txt tools/make_venv.sh
	@tools/make_venv.sh .venv $(PYTHON)
	@$(RUN) -m compare map > /dev/null  # what these read is cached now, not at the first command
	@$(RUN) -m compare list > /dev/null
	@touch $@

# Triton 3.6's interpreter makes Python numbers of arrays in a way that numpy 2.4 refuses.
.tritons/3.6.0/installed: BESIDE := 'numpy<2.4'

.tritons/%/installed: | $(ENV)
	@echo "installing Triton $* beside the environment's own"
	@rm -rf $(@D)
	@$(RUN) -m pip install --quiet --no-deps --target $(@D) triton$(patsubst ==newest,,==$*) $(BESIDE)
	@touch $@
