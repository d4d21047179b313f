"""What the server does when things end early: a closed tab, a full queue, a job that takes too long."""

import threading
import time

import pytest
import uvicorn

from aipo.web import page as layout
from aipo.web.server import make_app, open_socket
from conftest import PATIENCE

# The server's own libraries may warn as they like; elsewhere it runs in a process of its own.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def own_server(monkeypatch):
    """A server in this process, whose desk can be looked at."""
    running = []

    def start(time_limit=120.0, queue=layout.QUEUE, cores=None):
        monkeypatch.setattr(layout, "QUEUE", queue)
        if cores:
            monkeypatch.setattr("os.cpu_count", lambda: cores)
        app = make_app("celeba64-realnvp-small", time_limit)
        listener = open_socket("127.0.0.1", 0)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        running.append((server, thread, listener))
        return f"http://127.0.0.1:{listener.getsockname()[1]}", app.state.desk

    yield start
    for server, thread, listener in running:
        server.should_exit = True
        thread.join(30)
        listener.close()


def opened(browser, address):
    page = browser.new_context().new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(address)
    page.wait_for_function("document.querySelector('.painter .picture')?.width === 64")
    return page


def wait_until(condition):
    end = time.monotonic() + PATIENCE / 1000
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.1)


def test_a_closed_tab_ends_its_job(browser, own_server):
    address, desk = own_server()
    page = opened(browser, address)
    page.click("#restore")
    page.wait_for_selector('.viewer[data-status="running"]')
    assert (len(desk.jobs), desk.cores.jobs) == (1, 1)
    stop = desk.jobs.current(next(iter(desk.jobs._stops)))
    page.context.close()
    wait_until(lambda: (len(desk.jobs), desk.cores.jobs) == (0, 0))
    assert stop.is_set()


def test_time_runs_out(browser, own_server):
    address, desk = own_server(time_limit=1.0)
    page = opened(browser, address)
    page.click("#restore")
    page.wait_for_selector('.viewer[data-status="stopped"]')
    assert "Stopped after 1 s, the time limit" in page.inner_text(".viewer .status")
    wait_until(lambda: desk.cores.jobs == 0)
    page.context.close()


def test_a_full_queue_says_so(browser, own_server):
    address, _ = own_server(queue=2, cores=1)
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
