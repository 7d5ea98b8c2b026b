# Tasks of a checkout, in the environment that ./test makes: `make TASK`.
PYTHON := .venv/bin/python

.PHONY: lint types quick test golden docs bench

lint:  ## style
	$(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check .

types:  ## annotations
	$(PYTHON) -m mypy

quick:  ## the tests that need no Nsight and little time
	./test --quick

test:  ## all tests
	./test

golden:  ## printed texts and tables that the tests compare with, written anew
	$(PYTHON) tests/refresh_golden.py

docs:  ## docs/tables.md, out of the definitions of the tables
	$(PYTHON) -m tools.data_dictionary

bench:  ## the figures of docs/benchmarks.md
	for file in kernel_families decode_floor idle_gaps nccl_sum many_ranges fleet; do $(PYTHON) benchmarks/$$file.py || exit; done
