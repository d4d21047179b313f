"""What the server does when things end early: a closed tab, a full queue, a job that takes too long."""

import time
from contextlib import ExitStack

import pytest

from aipo.web import session
from aipo.web.server import make_app
from app_client import serving
from conftest import PATIENCE

# The server's own libraries may warn as they like; elsewhere it runs in a process of its own.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def own_server(monkeypatch):
    """A server in this process, whose state can be looked at."""
    with ExitStack() as running:

        def start(time_limit=120.0, queue=session.QUEUE, cores=None):
            monkeypatch.setattr(session, "QUEUE", queue)
            if cores:
                monkeypatch.setattr("os.cpu_count", lambda: cores)
            guard = make_app("celeba64-realnvp-small", time_limit)
            client = running.enter_context(serving(guard))
            return f"http://{client.address}", guard.jobs, guard.pictures.cores

        yield start


def opened(browser, address):
    page = browser.new_context().new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(f"{address}/faces")
    page.wait_for_function("document.querySelector('.painter .picture')?.width === 64")
    return page


def wait_until(condition):
    end = time.monotonic() + PATIENCE / 1000
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.1)


def test_a_closed_tab_ends_its_job(browser, own_server):
    address, jobs, cores = own_server()
    page = opened(browser, address)
    page.click("#restore")
    page.wait_for_selector('.viewer[data-status="running"]')
    assert (len(jobs), cores.jobs) == (1, 1)
    page.context.close()
    wait_until(lambda: (len(jobs), cores.jobs) == (0, 0))


def test_time_runs_out(browser, own_server):
    address, _, cores = own_server(time_limit=1.0)
    page = opened(browser, address)
    page.click("#restore")
    page.wait_for_selector('.viewer[data-status="stopped"]')
    assert "Stopped after 1 s, the time limit" in page.inner_text(".viewer .status")
    wait_until(lambda: cores.jobs == 0)
    page.context.close()


def test_a_full_queue_says_so(browser, own_server):
    address, _, _ = own_server(queue=2, cores=1)
    pages = [opened(browser, address) for _ in range(4)]
    for page in pages:
        page.click("#restore")
    ends = []
    for page in pages:
        page.wait_for_selector('.viewer[data-status="done"], .viewer[data-status="failed"]')
        page.wait_for_selector("#restore:visible")
        ends.append(page.inner_text(".viewer .status .text"))
    assert sum(text.startswith("Restored in") for text in ends) >= 1
    assert sum(text.startswith("Too many people") for text in ends) >= 1
    for page in pages:
        page.context.close()
