# Everything a fresh machine needs: `make install`, `make demo` and `make test` set up .venv by themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: install demo app test test-app check docs format clean

install: $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/aipo demo

# The web app, in your browser.
app: $(VENV)/.installed-app
	$(BIN)/aipo app

test: $(VENV)/.installed-dev
	$(BIN)/pytest -n 2 --ignore=tests/app

# The app in a real browser: needs Chromium, as `chromium` on the PATH or named by $CHROMIUM.
test-app: $(VENV)/.installed-browser-tests
	$(BIN)/pytest tests/test_app.py tests/app

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation, into site/; a broken link or reference is an error.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html, or with search: $(BIN)/mkdocs serve"

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A stamp for the core, which is all that running needs, and one for each extra.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-%: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[$*]"
	touch $@

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
