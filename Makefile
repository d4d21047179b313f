# Everything a fresh machine needs: `make install`, `make demo` and `make test` set up .venv by themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: install locked audit demo app test test-docs test-attacks test-app test-browser test-deepinv test-ray test-wheel check docs format clean

install: $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/aipo demo

# The web app, in your browser.
app: $(VENV)/.installed-app
	$(BIN)/aipo app

test: $(VENV)/.installed-dev
	$(BIN)/pytest -n 2 --ignore=tests/web --ignore=tests/attacks --ignore=tests/docs

# Every page does what it says: examples, tutorials, links.
test-docs: $(VENV)/.installed-dev
	$(BIN)/pytest -n 2 tests/docs

# Files, options and kills that nobody should have to fear: a seeded corpus.
test-attacks: $(VENV)/.installed-dev
	$(BIN)/pytest -n 2 tests/attacks --ignore=tests/attacks/test_app_requests.py

test-app: $(VENV)/.installed-browser-tests
	$(BIN)/pytest tests/web tests/attacks/test_app_requests.py --ignore=tests/web/browser

# The app in a real browser: needs Chromium, as `chromium` on the PATH or named by $CHROMIUM.
test-browser: $(VENV)/.installed-browser-tests
	$(BIN)/pytest tests/web/browser

# The wheel, installed where nothing else is, restores a picture.
test-wheel:
	PYTHON=$(PYTHON) scripts/check_wheel.sh

# Together with deepinv, in an environment of its own: the full torch and torchvision, 6.5 GB.
test-deepinv: $(VENV)-deepinv/.installed
	$(VENV)-deepinv/bin/python -m pytest -n 2 -rs $(wildcard tests/integrations/test_deepinv_*.py)

# A real Ray cluster of two nodes on this machine, one of which is killed.
test-ray: $(VENV)/.installed-dev $(VENV)/.installed-ray
	$(BIN)/pytest tests/integrations/test_spread_ray.py

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

# No constraints: the CPU build of torch that they name does not go with a published torchvision.
$(VENV)-deepinv/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-deepinv
	$(VENV)-deepinv/bin/python -m pip install --quiet --disable-pip-version-check \
		--editable ".[deepinv]" benchopt hypothesis pytest pytest-xdist scipy
	touch $@

# The tested set of versions with the hash of every file checked, all extras at once: what continuous integration uses.
# torch comes first: asked for hashes, pip would take the index's large build although a CPU build is at hand.
locked:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --constraint constraints.txt --dest $(VENV)/torch torch
	$(BIN)/python scripts/lock.py --check $(VENV)/torch/*
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(VENV)/torch/*
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(VENV)/.installed $(addprefix $(VENV)/.installed-,app browser-tests dev docs)

# Whether an advisory has been published for any of them; needs a network that reaches the database.
audit:
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)-audit/bin/pip-audit --requirement requirements.lock --require-hashes --disable-pip --strict

clean:
	rm -rf $(VENV) $(VENV)-audit $(VENV)-deepinv build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
