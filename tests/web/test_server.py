"""The whole app behind a real server, without a browser."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from bombs import blocks, saved
from PIL import Image
from typer.testing import CliRunner

from aipo.cli import app as command_line
from aipo.errors import InputError
from aipo.web.pictures import UPLOAD_MEMORY
from aipo.web.server import open_socket
from app_client import DENOISE, PATIENCE, Page, running_app

BROKEN = """
from aipo.cli import main
from aipo.web import handlers

def broken(*_):
    raise RuntimeError("a secret of ours")

handlers.painter_value = broken
main()
"""
FLOOD = """
import json
from aipo.web import server
from app_client import PRIOR, Page, serving

server.VISITORS = 5
guard = server.make_app(PRIOR, 120.0)
page = guard.unread.args[0]
with serving(guard) as client:
    for _ in range(20):
        with Page(client) as visitor:
            visitor.preview()
            visitor.join()
    queue = page._queue
    kept = page.state_holder.session_data, queue.pending_messages_per_session, queue.pending_event_ids_session
    print(json.dumps([len(things) for things in kept]))
"""


class TestWithoutGradio:
    def test_a_taken_port_is_said_to_be_so(self):
        with open_socket("127.0.0.1", 0) as listener:
            port = listener.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port)):
                pass
            with pytest.raises(InputError, match=f"port {port} is in use"):
                open_socket("127.0.0.1", port)

    def test_an_address_of_another_machine(self):
        with pytest.raises(InputError, match=r"cannot listen on 192\.0\.2\.1:0"):
            open_socket("192.0.2.1", 0)

    def test_it_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "gradio", None)
        result = CliRunner().invoke(command_line, ["app", "--no-browser"])
        assert result.exit_code == 2
        assert result.stderr == "aipo: the app needs Gradio: pip install 'aipo[app]'\n"


@pytest.fixture(scope="module")
def app():
    pytest.importorskip("gradio", reason="the extra app is not installed")
    with running_app() as running:
        yield running


def red():
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(buffer, "PNG")
    return buffer.getvalue()


def test_a_picture_is_taken_shown_and_restored(app):
    with Page(app) as page:
        assert np.asarray(page.upload(red())).reshape(-1, 3).tolist() == [[255, 0, 0]] * 4096
        page.run("take_sample", event_data={"name": "cat"})
        last = page.restore()
        assert last["status"] == "done"
        assert last["record"]["settings"]["task"] == "denoise"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a machine has only one address of its own")
def test_it_listens_on_this_machine_only(app):
    """The port is taken on 127.0.0.1 and on no other address of this machine."""
    port = int(app.address.split(":")[1])
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.2", port))
    with pytest.raises(OSError, match="in use"), socket.socket() as same:
        same.bind(("127.0.0.1", port))


def test_a_path_from_the_client_is_not_read(app, tmp_path):
    """A forged upload that names a file of the server: a real picture, so that only a refusal can stop it."""
    target = tmp_path / "private.png"
    target.write_bytes(red())
    forged = {"path": str(target), "meta": {"_type": "gradio.FileData"}}
    with Page(app) as page:
        for value in (forged, {**forged, "picture": forged}, str(target), [str(target)]):
            assert page.post("run/predict", page.event("take_upload", [value]))[0] == 400
        for value in ({"path": str(target)}, {"picture": str(target), "note": ""}, {"url": f"file://{target}"}):
            assert "refused" in page.run("take_upload", [value])[2]
        assert "refused" in page.send(str(target).encode())
        assert not (np.asarray(page.preview([None, "denoise", False, True, 0.1, 4, 1.5])) == [255, 0, 0]).all()


class TestOtherPeople:
    def test_knowing_a_session_is_not_enough_to_see_its_picture(self, app):
        with Page(app) as victim:
            victim.upload(red())
            with Page(app, session=victim.session) as thief:
                assert thief.cookie != victim.cookie
                seen = np.asarray(thief.preview([None, "denoise", False, True, 0.1, 4, 1.5]))
                assert not (seen == [255, 0, 0]).all(-1).any()  # the first sample, which everybody sees at first

    def test_nor_to_read_or_stop_its_job(self, app):
        with Page(app) as victim:
            assert victim.join()[0] == 200
            with Page(app, session=victim.session) as thief:
                path = f"/gradio_api/queue/data?session_hash={victim.session}"
                assert app.ask(path, headers={"cookie": thief.cookie})[0] == 404
                thief.run("stop")
            messages = list(victim.listen())
            assert [m for m in messages if m["msg"] == "process_completed"][-1]["output"]["data"][0]["status"] == "done"

    def test_without_a_session_there_is_nothing(self, app):
        with Page(app) as page:
            event = page.event("refresh", DENOISE)
            for session in (None, "", "null", "undefined"):
                status, answer = page.post("run/predict", {**event, "session_hash": session})
                assert status in (400, 403)
                assert set(answer) == {"error", "detail"}


def test_thirty_who_begin_and_do_not_listen_lock_nobody_out(app):
    pages = [Page(app) for _ in range(30)]
    for page in pages:
        page.run("begin")
        assert page.join()[0] == 200
    with Page(app) as honest:
        assert honest.restore()["status"] == "done"
    for page in pages:
        page.__exit__()


def test_pages_that_begin_and_leave_lock_nobody_out(app):
    for _ in range(30):
        with Page(app) as page:
            page.join()
    with Page(app) as honest:
        assert honest.restore()["status"] == "done"


def test_a_flood_of_pages_leaves_nothing_behind():
    """Of twenty pages that came and went, with a job each, as much is kept as for five."""
    pytest.importorskip("gradio", reason="the extra app is not installed")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", FLOOD]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    states, mailboxes, events = json.loads(answer.stdout)
    assert 0 < states <= 5
    assert 0 < mailboxes <= 5
    assert 0 < events <= 5
    assert "Traceback" not in answer.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how much memory a process had at most")
def test_many_large_uploads_at_once_keep_to_their_memory(app):
    """Eight of them took 5.4 GB once. No format needs more than WebP."""
    content = saved(blocks(6300, 6300), "WEBP", quality=10, method=0)
    before = app.memory()
    with Page(app) as page:
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(page.send(content))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all("6300x6300" in answer["note"] for answer in answers)
    assert len(answers) == 8
    assert app.memory("VmHWM") - before < UPLOAD_MEMORY


@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_quietly_when_busy(signal_):
    pytest.importorskip("gradio", reason="the extra app is not installed")
    with running_app(checked=False) as app, Page(app) as page, Page(app) as idle:
        page.join()
        messages = page.listen()
        next(m for m in messages if m["msg"] == "process_generating")
        assert idle.run("begin")
        app.process.send_signal(signal_)
        assert app.process.wait(PATIENCE) == (0 if signal_ == signal.SIGINT else -signal_)
        assert app.log() == ""


def test_a_bug_of_ours_is_still_logged_and_not_told_to_strangers():
    pytest.importorskip("gradio", reason="the extra app is not installed")
    with running_app(program=("-c", BROKEN), checked=False) as app, Page(app) as page:
        status, answer = page.post("run/predict", page.event("refresh", DENOISE))
        assert status == 500
        assert "secret" not in str(answer)
        assert "RuntimeError: a secret of ours" in app.log()
