# make help lists what there is. Variables: CXX, TORCH_DIR, BUILD_TYPE, BUILD_DIR, FUZZ_DIR, FUZZ_SECONDS, FUZZ_RUNS,
# FUZZ_ONLY, JOBS, SANITIZER, TORCH_INDEX, VENV, WHEEL_TORCH (all may stay unset).
SHELL := /bin/bash
BUILD_DIR ?= $(CURDIR)/build
FUZZ_DIR ?= $(CURDIR)/build-fuzz
VENV ?= $(CURDIR)/.venv
export BUILD_DIR FUZZ_DIR FUZZ_SECONDS FUZZ_RUNS FUZZ_ONLY VENV TORCH_DIR TORCH_INDEX BUILD_TYPE JOBS

.DEFAULT_GOAL := help
.PHONY: help setup build build-all test test-fast train bench growth compare chaos gpu-check python wheel format format-check tidy sanitize fuzz fuzz-training clean

help:  ## This list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "make %-13s %s\n", $$1, $$2}'
	@echo "TORCH_DIR=…        builds with that LibTorch;  TORCH_INDEX=URL  a pip index that has one;  JOBS=N  parallel compilers;  BUILD_TYPE=Debug"

setup:  ## Install everything that builds, tests and examples need: system packages, LibTorch, transformers, a model
	@scripts/setup.sh packages test
	@scripts/setup.sh python test

build:  ## Build the library and the program build/fsdp
	@scripts/setup.sh packages build
	@scripts/setup.sh python build
	@BUILD_TESTS=OFF BUILD_TARGETS=fsdp_program scripts/build.sh

build-all: setup  ## Build the library, the program, the tests, the examples and the benchmarks
	@scripts/build.sh

test:  ## Install what is missing, build everything, and run every test
	@scripts/test.sh

test-fast:  ## Build and run the tests that take seconds, of one process each
	@scripts/setup.sh packages test
	@scripts/setup.sh python test
	@BUILD_TARGETS=unit_tests scripts/build.sh
	@$(VENV)/bin/python scripts/run_tests.py --build-dir $(BUILD_DIR) --label unit

train:  ## Fine-tune a real Llama on real text over two ranks (CONFIG=examples/mnist.json: a RegNet on digits; examples/adult.json: a DHEN on census data)
	@scripts/train.sh

bench: build-all  ## Measure against PyTorch's DDP, FSDP1 and FSDP2
	@$(VENV)/bin/python benchmarks/run.py
	@$(VENV)/bin/python benchmarks/checkpoint.py

growth: build-all  ## Measure how costs grow with a model's size; fail if one grows faster than the size (GROWTH="--only units": its options)
	@$(VENV)/bin/python benchmarks/growth.py $(GROWTH)

compare: build-all  ## Compare with PyTorch in experiments modelled on the FSDP paper's figures (COMPARE="--experiment 2 --budget full": its options)
	@$(VENV)/bin/python benchmarks/compare $(COMPARE)

chaos: build-all  ## Kill a training run at every system call of its saves, and at random in 200 rounds; resume and compare the results
	@FSDP_EVERY_SYSTEM_CALL=1 $(VENV)/bin/python -m pytest -q tests/python/test_resume.py -k system_call
	@$(VENV)/bin/python tests/python/support/chaos.py --program $(BUILD_DIR)/fsdp --rounds 200

gpu-check:  ## Build, test and measure on a machine with an NVIDIA GPU (options: scripts/gpu_check --help)
	@scripts/gpu_check

python:  ## Build the Python package fsdp-cpp, install it into .venv, and import it
	@scripts/setup.sh packages build
	@scripts/setup.sh python build
	@scripts/setup.sh wheel
	@scripts/python.sh

wheel:  ## Make a wheel of the Python package for other machines, in dist/ (WHEEL_TORCH="2.13.0 2.14.1": for these versions of torch, or folders)
	@scripts/setup.sh packages build
	@scripts/setup.sh python build
	@scripts/setup.sh wheel
	@scripts/wheel.sh $(WHEEL_TORCH)

format:  ## Format all C++ and Python files
	@scripts/format.sh

format-check:  ## Fail when a file is not formatted, or ruff, codespell or pymarkdown finds a slip
	@scripts/format.sh --check

tidy: build-all  ## Look for slips in the library and the program with clang-tidy
	@scripts/tidy.sh

sanitize: setup  ## Run the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer (SANITIZER=thread: those of communicators under ThreadSanitizer)
	@scripts/sanitize.sh $(SANITIZER)

fuzz:  ## Fuzz the file readers, each for FUZZ_SECONDS (600) or over FUZZ_RUNS inputs
	@scripts/setup.sh packages test
	@scripts/setup.sh python build
	@scripts/fuzz.sh

fuzz-training:  ## Train random models in random ways for FUZZ_SECONDS (600), and compare with training in one process (ARGS="--seed 17": its options instead)
	@scripts/setup.sh packages test
	@scripts/setup.sh python build
	@BUILD_TARGETS=fuzz_training scripts/build.sh
	@$(BUILD_DIR)/fuzz_training $(or $(ARGS),--seconds $(or $(FUZZ_SECONDS),600))

clean:  ## Remove what was built (not the environment, the model or the data)
	rm -rf $(BUILD_DIR) $(FUZZ_DIR) build-sanitize build-tsan build-debug build-gpu build-wheel dist
