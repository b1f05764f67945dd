# `make run` and `make test` do all the set-up on a fresh machine with Python >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Where torch comes from: empty for PyPI's build (CUDA); https://download.pytorch.org/whl/rocm7.0 or the like for ROCm.
TORCH_INDEX ?=
# Their configuration parsers read our launch files in a test; what they need to train is not needed for that.
PARSERS := megatron-core torchtitan spmd_types

# Bytecode, schedule kernels and, by a first small search, cost kernels are compiled here, so that no command has to:
# bytecode of the libraries beside the kernels, on another core, and not by pip, which would compile it before.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
WARM = $(shell mktemp -d)/warm-up
NARROW := --set tp=1 --set cp=1 --set etp=1 --set micro_batch_size=1 --set sharding=distributed_optimizer

# Three workers on two cores, as much of the suite waits; files in the order of tests/conftest.py, longest first.
SPREAD := -n 3 --dist loadfile --no-loadscope-reorder
# Processor seconds of the tests of `make check`: its files are those of the least recorded time (tests/file_times.csv).
# Types are checked beside them: mypy takes a second where little changed, and 50 where nothing was checked before.
CHECK_S := 15
# Bytecode of the tests and of what changed since the set-up is kept: the suite starts hundreds of processes.
test test-full check: export PYTHONDONTWRITEBYTECODE =

# Benchmarks import models and devices that the tests share.
bench bench-gpu: export PYTHONPATH = .

.PHONY: run test test-full check newest judges bench bench-gpu clean help

help:
	@echo "make run        set up, search Mixtral 8x22B on 32 MI355X nodes, then measure a tiny model on this machine"
	@echo "make test       set up, run the test suite; the longest tests take turns by the day"
	@echo "make test-full  all that is long or sampled: every model preset traced, 20,000 damaged inputs, ninety moments of killing"
	@echo "make check      ruff, mypy --strict, import layers, the fastest files of tests: within a minute"
	@echo "make newest     settings of the newest releases on PyPI that have no verdict here (test-full warns of them)"
	@echo "make judges     the frameworks' own checks on our launch files; PRIMUS_SEARCH_CLIENTS names their sources"
	@echo "make bench      benchmarks of the search, its projections and schedules (docs/dev/performance_log.md)"
	@echo "make bench-gpu  measure this machine's accelerator, if it has one"

# The stamp depends on the files that decide what is installed; a second `make run` installs nothing.
$(READY): pyproject.toml setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$$(grep '^torch==' constraints.txt)"
	$(PIP) --constraint constraints.txt --editable '.[dev]'
	$(PIP) --constraint constraints.txt --no-deps $(PARSERS)
	$(BIN)/python -m compileall -q primus_search
	$(BIN)/python -m compileall -qq $(VENV)/lib & \
	$(BIN)/python -c "from primus_search.schedule import warm_up; warm_up()" && \
	$(BIN)/primus-search run spaces/mixtral_8x22b_mi355x.yaml --bench off --workers 1 --out $(WARM) $(NARROW) >/dev/null; \
	warm=$$?; wait; exit $$warm
	@touch $(READY)

run: $(READY)
	$(BIN)/primus-search run spaces/mixtral_8x22b_mi355x.yaml --nodes 32
	$(BIN)/primus-search run spaces/tiny_host.yaml

test: $(READY)
	$(BIN)/python -m pytest $(SPREAD) -m "not full"

test-full: $(READY)
	$(BIN)/python -m pytest -m full
	-$(MAKE) newest

# Settings of the newest releases on PyPI that have no verdict here (framework=package); none found at all fails, too.
NEWEST := nemo=megatron-core torchtitan=torchtitan
newest: $(READY)
	@folder=$$(mktemp -d); failed=0; for each in $(NEWEST); do \
	$(PIP) --no-deps --target $$folder/$${each%%=*} $${each#*=} && \
	$(BIN)/python -m tools.setting_verdicts $${each%%=*} $$folder/$${each%%=*} || failed=1; done; rm -rf $$folder; exit $$failed

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy & types=$$!; \
	$(BIN)/python -m pytest $(SPREAD) -n 2 -m "not slow and not full" -x --processor-budget $(CHECK_S); tests=$$?; \
	wait $$types && exit $$tests

# Sources below $$PRIMUS_SEARCH_CLIENTS: folders of tests/support/judge/checkouts.py; what is missing is skipped, with its name.
JUDGED := tests/tools/test_argument_tables.py tests/tools/test_random_scripts.py tests/launch/test_setting_verdicts.py \
	tests/launch tests/oracle/test_schedule_launchers.py
judges: $(READY)
	$(BIN)/python -m pytest $(SPREAD) -rs $(JUDGED)

bench: $(READY)
	for each in search project schedule; do $(BIN)/python tests/bench/bench_$$each.py; done

bench-gpu: $(READY)
	$(BIN)/python tests/bench/bench_gpu.py

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
