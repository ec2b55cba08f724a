# Every target works on a fresh clone: it needs Python >= 3.11 and a C compiler, and installs the rest into .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: help venv demo test verify clean
help: ## show what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

venv: $(STAMP) ## make .venv with tierline and everything its tests need

$(STAMP): pyproject.toml nodeagent/native/CMakeLists.txt
	test -x $(BIN)/uv || { $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet uv; }
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[dev]'
	touch $@

clean: ## remove what was built (not the virtual environment)
	rm -rf build
