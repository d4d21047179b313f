"""The page for photographs behind a real server: what it answers, who waits, and what ends when somebody leaves."""

import gc
import http.client
import io
import json
import threading
import time

import numpy as np
import pytest

pytest.importorskip("gradio", reason="the extra app is not installed")

from PIL import Image

import aipo
from aipo.web import photos
from aipo.web.server import embedded_photo_prior, make_app
from app_client import PATIENCE, PRIOR, photo_messages, photo_request, save_photo_prior, serving

# The server's own libraries may warn as they like; elsewhere it runs in a process of its own.
pytestmark = pytest.mark.filterwarnings("default")
DENOISE = {"tab": "one", "options": {"task": "denoise", "sigma": 0.1}}


@pytest.fixture(scope="module")
def prior_file(tmp_path_factory):
    return save_photo_prior(tmp_path_factory.mktemp("prior") / "gauss.safetensors")


@pytest.fixture(scope="module")
def guard(prior_file):
    return make_app(PRIOR, 120.0, photo_prior=str(prior_file))


@pytest.fixture(scope="module")
def app(guard):
    with serving(guard) as client:
        yield client
    gc.collect()  # Gradio leaves an event loop behind; now is when nobody minds


@pytest.fixture(scope="module")
def cookie(app):
    return app.ask("/")[1]["set-cookie"].split(";")[0]


def picture(side=64, format="PNG"):
    array = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format)
    return buffer.getvalue()


def ask(app, cookie, action, header, *files):
    status, headers, content = app.ask(f"/photo/{action}", "POST", photo_request(header, *files), {"cookie": cookie})
    assert status == 200, content
    assert headers["content-type"] == "application/octet-stream"
    return list(photo_messages(content))


def test_the_page_and_its_files(app):
    for path, kind, word in (
        ("/", "text/html; charset=utf-8", b"Prior: gauss"),
        ("/photo/photo.js", "text/javascript", b"import"),
        ("/photo/stage.js", "text/javascript", b"class Stage"),
        ("/photo/photo.css", "text/css", b"#stage"),
    ):
        status, headers, content = app.ask(path)
        assert (status, headers["content-type"]) == (200, kind)
        assert word in content
        assert "default-src 'self'" in headers["content-security-policy"]
    assert Image.open(io.BytesIO(app.ask("/photo/sample.png")[2])).size == (300, 200)
    assert app.ask("/photo/photo.html")[0] == app.ask("/photo/../photo.js")[0] == app.ask("/photo/")[0] == 404


def test_faces_are_one_choice_away(app):
    status, headers, content = app.ask("/faces")
    assert status == 200
    assert "aipo=" in headers["set-cookie"]
    assert b"gradio" in content
    assert b"Photographs" in content


def test_look_restore_and_mix(app, cookie):
    content = picture()
    ((message, shown),) = ask(app, cookie, "look", {}, content)
    assert message["size"] == [64, 64]
    assert message["text"] == "64x64 pixels, PNG, 8 bits, color"
    assert Image.open(io.BytesIO(shown)).format == "JPEG"
    *_, (last, file) = ask(app, cookie, "restore", DENOISE, content)
    assert last["status"] == "done"
    after, before = (np.asarray(Image.open(io.BytesIO(f))).astype(float) for f in (file, content))
    ((_, mixed),) = ask(app, cookie, "blend", {"first": len(content), "share": 0.5}, content, file)
    assert np.abs(np.asarray(Image.open(io.BytesIO(mixed))) - (after + before) / 2).max() <= 1


def test_a_long_answer_arrives_whole(app, cookie):
    """It is sent in pieces."""
    side = 400
    *_, (last, file) = ask(app, cookie, "restore", DENOISE, picture(side))
    assert len(file) > photos.CHUNK
    assert Image.open(io.BytesIO(file)).size == (side, side)
    assert last["status"] == "done"


@pytest.mark.parametrize(
    ("action", "header", "text"),
    [
        ("look", {}, "not a picture"),
        ("restore", DENOISE, "not a picture"),
        ("restore", {"tab": "one"}, "unknown task"),
        ("restore", ["x"], "not what the page sends"),
        ("blend", {"share": 0.5}, "did not arrive"),
        ("blend", {"first": 3, "share": 0.5}, "not a picture"),
    ],
)
def test_a_refusal_is_a_message(app, cookie, action, header, text):
    ((message, more),) = ask(app, cookie, action, header, b"hello, world")
    assert message["status"] == "failed"
    assert text in message["text"].lower()
    assert more == b""


def test_what_is_not_let_in(app, cookie):
    body, headers = photo_request(DENOISE, picture()), {"cookie": cookie}
    assert app.ask("/photo/restore", "POST", body)[0] == 403  # no cookie
    assert app.ask("/photo/restore", "GET", None, headers)[0] == 405
    assert (
        app.ask("/photo/restore", "POST", body, {**headers, "content-length": str(photos.LONGEST["restore"] + 1)})[0]
        == 413
    )
    assert app.ask("/photo/other", "POST", body, headers)[0] == 404
    bad = photo_request({**DENOISE, "tab": "../x"}, picture())
    assert app.ask("/photo/restore", "POST", bad, headers)[0] == 400
    assert app.ask("/", headers={"host": "evil.example"})[0] == 400


def wait_until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def begun(app, cookie, header, content):
    """A restoration whose first message has arrived; the connection."""
    connection = http.client.HTTPConnection(app.address, timeout=PATIENCE)
    connection.request("POST", "/photo/restore", photo_request(header, content), {"cookie": cookie})
    answer = connection.getresponse()
    json.loads(answer.readline())
    return connection, answer


def test_who_leaves_stops_the_work(app, guard, cookie):
    slow = {"tab": "two", "options": {"task": "superres", "factor": 4}}
    connection, answer = begun(app, cookie, slow, picture(600))
    assert len(guard.jobs) == 1
    answer.close()
    connection.close()
    start = time.monotonic()
    wait_until(lambda: (len(guard.jobs), guard.pictures.cores.jobs, guard.photos.photos.work.used) == (0, 0, 0))
    assert guard.photos.photos.files.used == 0
    assert time.monotonic() - start < 60  # all of it would take minutes


def test_two_tabs_do_not_disturb_each_other(app, cookie):
    """Two restorations of one browser at once: each ends with its own picture."""
    found = {}

    def work(tab, side):
        *_, (last, file) = ask(app, cookie, "restore", {**DENOISE, "tab": tab}, picture(side))
        found[tab] = last["status"], Image.open(io.BytesIO(file)).size

    threads = [threading.Thread(target=work, args=pair) for pair in (("a", 300), ("b", 200))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"a": ("done", (300, 300)), "b": ("done", (200, 200))}


def test_who_begins_again_in_the_same_tab_stops_the_older_one(app, guard, cookie):
    slow = {"tab": "same", "options": {"task": "superres", "factor": 4}}
    connection, answer = begun(app, cookie, slow, picture(600))
    *_, (last, _) = ask(app, cookie, "restore", {**DENOISE, "tab": "same"}, picture())
    assert last["status"] == "done"
    wait_until(lambda: len(guard.jobs) == 0)
    answer.close()
    connection.close()


def test_time_runs_out(app, guard, cookie, monkeypatch):
    monkeypatch.setattr(guard.photos.photos, "time_limit", 0.0)
    *_, (last, _) = ask(app, cookie, "restore", DENOISE, picture())
    assert last["status"] == "stopped"
    assert "the time limit" in last["text"]


def test_who_finds_no_room_waits(app, guard, cookie, monkeypatch):
    """More memory than there is at the moment: the second begins when the first is through."""
    desk = guard.photos.photos
    monkeypatch.setattr(desk.work, "total", photos.photo_memory(picture(300)) + 1)
    said = []
    thread = threading.Thread(target=lambda: said.append(ask(app, cookie, "restore", DENOISE, picture(300))))
    thread.start()
    said.append(ask(app, cookie, "restore", {**DENOISE, "tab": "other"}, picture(300)))
    thread.join()
    assert [messages[-1][0]["status"] for messages in said] == ["done", "done"]
    assert desk.work.used == desk.files.used == 0


def test_nothing_is_left_in_the_temporary_folder(app, cookie, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ask(app, cookie, "restore", DENOISE, picture())
    assert list(tmp_path.iterdir()) == []


def test_without_a_prior_for_photographs_it_says_so(monkeypatch):
    monkeypatch.setattr("aipo.web.server.prior_names", lambda: ["celeba64-glow"])
    assert embedded_photo_prior() is None
    with serving(make_app(PRIOR, 120.0)) as client:
        content = client.ask("/")[2]
        assert b"gradio" in content
        assert b"--photo-prior FILE" in content
        assert client.ask("/photo/photo.js")[0] == 404
    gc.collect()


def test_a_prior_for_faces_is_refused():
    with pytest.raises(aipo.InputError, match="knows no noise levels"):
        make_app(PRIOR, 120.0, photo_prior=PRIOR)
