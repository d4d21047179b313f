"""Forged requests against the web app: each is answered, short and clean, and nobody else notices."""

import io
import json
import random
import socket
import struct
import zlib

import numpy as np
import pytest

pytest.importorskip("gradio", reason="the extra app is not installed")

from PIL import Image

from aipo.web.decode import MAX_BYTES
from aipo.web.guard import MAX_EVENT
from app_client import DENOISE, PATIENCE, PRIOR, Page, running_app, save_photo_prior

RUN, JOIN, DATA = "/gradio_api/run/predict", "/gradio_api/queue/join", "/gradio_api/queue/data"
FORGED = [
    None, True, -1, 0, 3, 1e308, -1e308, 10**400, "", "x", "0.1", "denoise", "../../etc/passwd", "\x00", "é" * 500,
    "__class__", "{{7*7}}", "<script>alert(1)</script>", [], [None], [[[]]], {}, {"__type__": "update", "value": 1},
    {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}, {"name": "cat"}, {"mask": "0" * 4096},
    {"mask": "2" * 4096}, {"mask": 7}, {"picture": "AAAA", "note": "x"},
]  # fmt: skip


def http(method, path, body=b"", headers=(), cookie=True, host="localhost", length=...):
    """A request as bytes. {cookie} and {session} stand for those of the attacker."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
    lines += ["Cookie: {cookie}"] if cookie else []
    if length is ...:
        length = len(body) if body or method == "POST" else None
    lines += [] if length is None else [f"Content-Length: {length}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def _png(array):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


def event(function, data, path=RUN, **changes):
    """An event of the page with some of its parts exchanged."""
    whole = {"data": data, "fn_index": function, "session_hash": "{session}", **changes}
    return lambda page: http("POST", path, _json(page, whole), ["Content-Type: application/json"])


def _json(page, whole):
    function = whole["fn_index"]
    known = isinstance(function, str) and function in page.functions
    event = {**whole, "fn_index": page.functions[function] if known else function}
    if event["session_hash"] == "{session}":
        event["session_hash"] = page.session
    return json.dumps({key: value for key, value in event.items() if value is not ...}).encode()


def paths():
    plain = [
        "/etc/passwd", "//etc/passwd", "/../../../../etc/passwd", "/static/../../../../../../etc/passwd",
        "/static/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd", "/assets/..%2f..%2f..%2f..%2fetc/passwd",
        "/static//etc/passwd", "/assets/%00", "/assets/a%0d%0aSet-Cookie:x", "/static/..%5c..%5cwin.ini",
        "/file=/etc/passwd", "/.git/config", "/gradio_api/file=/etc/passwd", "/gradio_api/file%3D/etc/passwd",
        "/gradio_api/proxy=http://127.0.0.1:22/", "/gradio_api/info", "/gradio_api/openapi.json", "/gradio_api/runs",
        "/gradio_api/deep_link?session_hash=x", "/gradio_api/stream/a/b/c/playlist.m3u8",
        "/gradio_api/custom_component/a/client/b/c.js", "/monitoring/summary",
        "/gradio_api/upload_progress?upload_id=x", "/gradio_api/call/restore/x", "/gradio_api/vibe-code/", "/login",
        "/?deep_link=../../../etc/passwd", "/config?deep_link=%00&page=%ff", "/" + "a" * 10_000, "/%ff%fe",
        "/?" + "b" * 9000, "/gradio_api/startup-events", "/gradio_api/heartbeat/", "/gradio_api/heartbeat/a/b",
        "/gradio_api/heartbeat/%2e%2e", "/gradio_api/queue/data", "/gradio_api/queue/data?session_hash=",
        "/gradio_api/queue/data?session_hash=null", "/gradio_api/queue/data?session_hash=unknown",
        "/gradio_api/queue/data?session_hash=a&session_hash=b", "/gradio_api/queue/data?session_hash=%00",
        "/gradio_api/queue/data?session_hash=../x", "/pwa_icon/99999999",
    ]  # fmt: skip
    yield from ((f"path {path[:60]}", http("GET", path)) for path in plain)


def methods():
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "x"):
        for path in ("/", "/picture", RUN, DATA, "/gradio_api/upload", "/gradio_api/component_server"):
            yield f"{method} {path}", http(method, path, b"{}", ["Content-Type: application/json"])


def headers():
    for line in (
        "X-Forwarded-Host: [", "X-Forwarded-Host: evil.example:x", "X-Gradio-Server: ::", "X-Forwarded-Proto: x",
        "Range: bytes=a", "Range: bytes=0-,0-,0-,0-", "Accept-Encoding: br;q=x", "Content-Type: \xff",
        "Authorization: Bearer x", "If-None-Match: *", "Cookie: aipo=\xff; ;;=;", "Origin: null",
        "Origin: http://evil.example", "X-Forwarded-For: " + "1, " * 2000, "Upgrade: websocket",
        "Connection: Upgrade, HTTP2-Settings", "Expect: 100-continue", "Expect: x", "Te: \x01",
        "Transfer-Encoding: chunked", "Transfer-Encoding: x", "Content-Length: -1", "X: " + "y" * 70_000,
    ):  # fmt: skip
        yield f"header {line[:40]!r}", http("GET", "/config", headers=[line])
    for host in ("evil.example", "", "[", "a b", "127.0.0.1:99999", "localhost@evil.example", "localhost.evil.example"):
        yield f"host {host!r}", http("GET", "/", host=host)


def bodies():
    for path in (RUN, JOIN, "/picture"):
        limit = MAX_BYTES if path == "/picture" else MAX_EVENT
        yield f"{path} without a length", http("POST", path, b"{}", length=None)
        yield (
            f"{path} in chunks",
            http("POST", path, b"2\r\n{}\r\n0\r\n\r\n", ["Transfer-Encoding: chunked"], length=None),
        )
        for length in ("-1", "1e3", "0x10", "9" * 40, str(limit + 1), str(10**12)):
            yield f"{path} of length {length[:14]}", http("POST", path, b"{}", length=length)
        yield f"{path} without a cookie", http("POST", path, b"{}", cookie=False)
        for kind in ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "\xff"):
            yield f"{path} as {kind}", http("POST", path, b"a=1", [f"Content-Type: {kind}"])
        for body in (
            b"",
            b"{",
            b"[" * 60_000,
            b"null",
            b"\xff\xfe\x00",
            b'{"a":' * 9000,
            b"1" * 5000,
            b'"\\ud800"',
            b"NaN",
        ):
            yield f"{path} with {body[:10]!r}", http("POST", path, body, ["Content-Type: application/json"])
        yield f"{path} with deflate", http("POST", path, zlib.compress(bytes(9999)), ["Content-Encoding: deflate"])


def files():
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    for side in (1, 6324, 100_000, 2**31 - 1):
        header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0))
        png = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
        yield f"empty PNG of side {side}", http("POST", "/picture", png)
    text = chunk(b"zTXt", b"x\0\0" + zlib.compress(bytes(70_000_000)))
    yield "PNG with a bomb of text", http("POST", "/picture", png[:33] + text + png[33:])
    for magic in (
        b"RIFF\xff\xff\xff\xffWEBPVP8X",
        b"II*\0\xff\xff\xff\xff",
        b"\xff\xd8\xff\xe0",
        b"BM",
        b"GIF89a",
        b"<svg/>",
    ):
        yield f"file {magic[:8]!r}", http("POST", "/picture", magic + bytes(100))


def events():
    asked = [PRIOR, *DENOISE, None]
    for function in ("nothing", -1, 99, 10**30, None, True, 1.5, "0", [], {}, ...):
        yield f"function {function!r}", event(function, [])
    for session in (None, "", 0, [], {}, "a" * 65, "a b", "../x", "\x00", "unknown", ...):
        yield f"session {session!r}", event("refresh", DENOISE, session_hash=session)
        yield f"joining as {session!r}", event("restore", asked, JOIN, session_hash=session)
    for data in (..., None, {}, "x", [], DENOISE[1:], [*DENOISE, None], [DENOISE]):
        yield f"data {str(data)[:30]}", event("refresh", data)
    for name, value in (
        ("event_id", "x"), ("simple_format", True), ("batched", True), ("oauth_token", "x"), ("request", {}),
        ("trigger_id", 10**9), ("trigger_id", "6"), ("trigger_id", []), ("event_data", "x"),
        ("event_data", {"target": 1}),
    ):  # fmt: skip
        yield f"{name} {value!r}", event("refresh", DENOISE, **{name: value})
    for details in (
        None,
        {},
        [],
        "cat",
        {"name": "dog"},
        {"name": None},
        {"name": ["cat"]},
        {"name": "__class__"},
        {"x": 1},
    ):
        yield f"sample {details!r}", event("take_sample", [], event_data=details)
    yield "the queue's door for what is answered at once", event("refresh", DENOISE, JOIN)
    yield "the other door for what is queued", event("restore", asked)


def photographs():
    """Against the page for photographs; what is wrong with a picture comes back as a message."""
    png = _png(np.zeros((8, 8, 3), np.uint8))
    wishes = [
        b"", b"{", b"null", b"[]", b"{}", b'{"tab": "../x", "options": {"task": "denoise"}}', b"[" * 60_000,
        b"\xff\xfe", b'{"tab": {}, "options": {"task": "denoise"}}',
        b'{"tab": "a", "options": {"task": "denoise", "sigma": 1e999}}',
        b'{"tab": "a", "options": {"task": "denoise", "mask": "/etc/passwd"}}', b'{"tab": "a", "options": "denoise"}',
        b'{"tab": "a", "options": {"task": "denoise", "prior": "/etc/passwd"}}', b'{"first": 1e9, "share": 0.5}',
        b'{"tab": "a", "options": {"task": "inpaint"}, "strokes": [[1e9, 0, 1, 1]]}', b'{"first": true, "share": 0}',
        b'{"tab": "a", "options": {"task": "inpaint"}, "strokes": [[1, 0, 1e308, 1]]}', b'{"first": 9, "share": NaN}',
        b'{"tab": "a", "options": {"task": "superres", "factor": -2}}', b'{"first": -1, "share": 0.5}',
        b'{"tab": "a", "options": {"task": "deblur", "motion": "1e9,0"}}', b'{"first": 5, "share": "x"}',
    ]  # fmt: skip
    for action in ("look", "restore", "blend"):
        path = f"/photo/{action}"
        for i, wish in enumerate(wishes):
            yield f"{path} {i}: {wish[:40]!r}", http("POST", path, wish + b"\n" + png)
        yield f"{path} without a picture", http("POST", path, b'{"tab": "a", "options": {"task": "denoise"}}')
        yield f"{path} without a cookie", http("POST", path, b"{}\n" + png, cookie=False)
        yield f"{path} of a terabyte", http("POST", path, b"{}", length=str(10**12))
        yield f"{path} by GET", http("GET", path)
    for path in ("/photo/../photos.py", "/photo/photos.py", "/photo/photo.html", "/photo/", "/photo/look/x"):
        yield f"file {path}", http("GET", path)


def mutations():
    """An honest event with one value exchanged for another one that no control has, two hundred times."""
    random_ = random.Random(0)
    for i in range(200):
        function, path, data = random_.choice(
            [("refresh", RUN, DENOISE), ("usual_sigma", RUN, ["denoise"]), ("take_upload", RUN, [None]),
             ("restore", JOIN, [PRIOR, *DENOISE, None])]
        )  # fmt: skip
        position, value = random_.randrange(len(data)), random_.choice(FORGED)
        changed = [*data[:position], value, *data[position + 1 :]]
        yield f"{i}: {function} with {str(value)[:30]!r} at {position}", event(function, changed, path)


CORPUS = [*paths(), *methods(), *headers(), *bodies(), *files(), *events(), *photographs(), *mutations()]


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    prior = save_photo_prior(tmp_path_factory.mktemp("prior") / "gauss.safetensors")
    with running_app("--photo-prior", str(prior)) as running:
        yield running


@pytest.fixture(scope="module")
def secret(app):
    """A picture of somebody else, who has the page open all the while; what must not be seen of it."""
    pattern = np.random.default_rng(7).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    with Page(app) as victim:
        sent = victim.send(_png(pattern))
        victim.run("take_upload", [sent])
        yield [sent["picture"][100:140], victim.session, victim.cookie.split("=")[1]]
        assert np.array_equal(np.asarray(victim.preview([None, "denoise", False, True, 0.1, 4, 1.5])), pattern)


@pytest.fixture(scope="module")
def attacker(app):
    with Page(app) as page:
        yield page


def answer_to(app, request):
    """All that comes back; an answer that goes on is not waited for."""
    host, port = app.address.split(":")
    received = b""
    with socket.create_connection((host, int(port)), PATIENCE) as connection:
        try:
            connection.sendall(request)
            while piece := connection.recv(1 << 20):
                received += piece
                if b"text/event-stream" in received:
                    break
        except ConnectionError:  # it has said what it had to say, and does not read the rest
            pass
    return received


@pytest.mark.parametrize("forged", [forged for _, forged in CORPUS], ids=[name for name, _ in CORPUS])
def test_a_forged_request_is_answered_short_and_clean(app, attacker, secret, forged):
    logged = len(app.log())
    request = forged(attacker) if callable(forged) else forged
    answer = answer_to(app, request.replace(b"{cookie}", attacker.cookie.encode()))
    status = int(answer.split()[1])
    assert 200 <= status < 300 or 400 <= status < 500, answer[:300]
    if status >= 400:
        assert len(answer) < 1500
    for leak in (b"Traceback", b"root:", b"site-packages", b"/aipo/", *(part.encode() for part in secret)):
        assert leak not in answer
    log = app.log()[logged:]
    assert "Traceback" not in log
    assert "ERROR" not in log


def test_an_honest_request_still_works(app, attacker, secret):
    with Page(app) as page:
        assert page.restore()["status"] == "done"
    assert attacker.preview().size == (64, 64)


def test_the_corpus_is_large():
    assert len(CORPUS) >= 300
    assert len({name for name, _ in CORPUS}) == len(CORPUS)
