"""The app as people meet it: `aipo app` in a process of its own, and Chromium in front of it.

Chromium is the system's; $CHROMIUM names it where it is not on the PATH. Screenshots are kept in artifacts/app.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gradio", reason="the extra browser-tests is not installed")
pytest.importorskip("playwright", reason="the extra browser-tests is not installed")

from playwright.sync_api import sync_playwright

from app_client import save_photo_prior

ARTIFACTS = Path(__file__).parents[3] / "artifacts" / "app"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
PATIENCE = 120_000  # milliseconds; a test never fails for being slow


def chromium():
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Of a server that runs as long as the tests of a file. Its prior for photographs is quick, and not trained."""
    prior = save_photo_prior(tmp_path_factory.mktemp("prior") / "gauss.safetensors")
    command = [sys.executable, "-m", "aipo", "app", "--port", "0", "--no-browser", "--photo-prior", str(prior)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        line = server.stdout.readline()
        try:
            assert line.startswith("Open http://127.0.0.1:"), line or server.stderr.read()
            yield line.split()[1]
            assert server.poll() is None, "the server has ended on its own"
        finally:
            server.terminate()
            _, complaints = server.communicate(timeout=30)
        assert "Traceback" not in complaints, complaints


@pytest.fixture(scope="module")
def browser():
    program = chromium()
    if program is None:
        pytest.skip("no Chromium; install it, or name it in $CHROMIUM")
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def visit(browser, address):
    """Opens the page as a new user. At the end nothing may have gone wrong or to another host."""
    contexts, complaints, requests = [], [], []

    def open_page(width=1280, height=960, dark=False, faces=True, touch=False):
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            accept_downloads=True,
            has_touch=touch,
        )
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        return open_tab(context, faces)

    def open_tab(context, faces):
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"{address}/faces" if faces else address)
        page.wait_for_selector("#restore")
        if faces:
            page.wait_for_function("document.querySelector('.painter .picture').width === 64")
        return page

    open_page.another_tab = lambda page: open_tab(page.context, False)
    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith((address, "data:", "blob:"))] == []
