"""The door of the app, with something behind it that answers everything: what gets in, and what it sees."""

import asyncio
import json
import random

import pytest

from aipo.web.decode import MAX_BYTES
from aipo.web.events import Events, Function
from aipo.web.guard import MAX_EVENT, MAX_UNREAD, Guard, is_host, is_local
from aipo.web.jobs import ABANDONED, Cores, Jobs
from aipo.web.pictures import Pictures
from aipo.web.visitors import Visitors

COOKIE = (b"cookie", b"aipo=" + b"a" * 43)
HEARTBEAT, MESSAGES, EVENT = "/gradio_api/heartbeat/s1", "/gradio_api/queue/data", "/gradio_api/run/predict"


def make_guard(inner, **options):
    events = Events({0: Function(), 1: Function(queued=True)}, {7})
    unread = options.pop("unread", lambda _: None)
    return Guard(inner, events, Visitors(9, print), Pictures((64, 64), Cores(1)), Jobs(9), unread, **options)


def event(function):
    """The body of a request, and its headers."""
    body = json.dumps({"session_hash": "s1", "fn_index": function, "data": []}).encode()
    return body, [COOKIE, (b"content-length", b"%d" % len(body))]


def ask(path, method="GET", headers=(), guard=None, query=b"", body=b"", host=b"localhost:7860"):
    """Status, headers and content of what the guard answers, and the request that got past it."""
    seen = []

    async def inner(scope, receive, send):
        seen.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"secret"})

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    sent = []

    async def send(message):
        sent.append(message)

    guard = guard or make_guard(inner)
    guard.app = inner
    scope = {"type": "http", "path": path, "method": method, "query_string": query}
    asyncio.run(guard({**scope, "headers": [(b"host", host), *headers]}, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"], seen


@pytest.mark.parametrize("path", ["/", "/config", "/theme.css", "/assets/Index-Akn07EZk2.js", "/static/img/a/b.svg"])
def test_open_paths_carry_the_policy(path):
    status, headers, body, _ = ask(path)
    assert (status, body) == (200, b"secret")
    assert b"default-src 'self'" in headers[b"content-security-policy"]
    assert b"http" not in headers[b"content-security-policy"]
    assert headers[b"x-frame-options"] == b"DENY"
    assert headers[b"x-content-type-options"] == b"nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/file/x",
        "/file=/etc/passwd",
        "//file=x",
        "/gradio_api/upload",
        "/gradio_api/proxy=http://x",
        "/gradio_api/info",
        "/gradio_api/component_server",
        "/gradio_api/call/restore",
        "/gradio_api/cancel",
        "/gradio_api/queue/status",
        "/gradio_api/heartbeat/x/y/",
        "/gradio_api/dev/reload",
        "/monitoring",
        "/docs",
        "/openapi.json",
        "/login",
        "",
        "*",
    ],
)
def test_closed_paths(path):
    status, headers, body, seen = ask(path, headers=[COOKIE])
    assert 400 <= status < 500
    assert not seen
    assert b"secret" not in body
    assert headers[b"x-frame-options"] == b"DENY"


def test_three_hundred_ways_out_of_a_folder_are_refused():
    """What a path may look like once the server has decoded it."""
    pieces = ["..", "...", "....//", "..\\", "%2e%2e", "..%2f", "..;", ".\x00.", "．．", "~root", "C:", "/"]
    random_ = random.Random(0)
    for _ in range(300):
        middle = "/".join(random_.choices(pieces, k=random_.randint(1, 8)))
        path = random_.choice(["/assets/", "/static/", "/static/img/", "/theme.css/", "/"]) + middle + "/etc/passwd"
        status, _, _, seen = ask(path)
        assert status == 404, path
        assert not seen


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY"])
def test_a_page_is_only_asked_for(method):
    assert ask("/", method, [(b"content-length", b"0")])[0] == 405


def test_what_is_not_http_is_turned_away():
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(make_guard(None)({"type": "websocket", "path": "/"}, None, send))
    assert sent == [{"type": "websocket.close"}]


@pytest.mark.parametrize(
    ("path", "limit"), [(EVENT, MAX_EVENT), ("/gradio_api/queue/join", MAX_EVENT), ("/picture", MAX_BYTES)]
)
@pytest.mark.parametrize(("length", "status"), [(None, 411), (b"many", 411), (b"-1", 411), (b"9" * 30, 411), (1, 413)])
def test_bodies_have_a_limit(path, limit, length, status):
    length = b"%d" % (limit + length) if isinstance(length, int) else length
    headers = [COOKIE] if length is None else [COOKIE, (b"content-length", length)]
    answered, headers, _, seen = ask(path, "POST", headers)
    assert answered == status
    assert headers[b"connection"] == b"close"  # the rest is not read
    assert not seen


@pytest.mark.parametrize("header", [(b"content-length", b"5"), (b"transfer-encoding", b"chunked")])
def test_a_question_has_no_body(header):
    assert ask("/", headers=[header])[0] == 400


class TestHosts:
    @pytest.mark.parametrize("host", [b"127.0.0.1", b"localhost:7860", b"LOCALHOST", b"[::1]:80"])
    def test_this_machine(self, host):
        assert is_local(host)
        assert is_host(host)
        assert ask("/", host=host)[0] == 200

    @pytest.mark.parametrize("host", [b"evil.example", b"127.0.0.1.evil.example", b"192.168.0.7", b"a-b.c:1"])
    def test_others_are_refused_unless_others_may_ask(self, host):
        assert ask("/", host=host)[0] == 400
        assert ask("/", host=host, guard=make_guard(None, local=False))[0] == 200

    @pytest.mark.parametrize(
        "host", [b"", b"[", b"a b", b"a/b", b"999.1.1.1", b"[::g]", b"a:99999", b"a@b", b"a..b", b"\xff", b"a:b"]
    )
    def test_what_is_no_name_is_refused_everywhere(self, host):
        assert not is_host(host)
        assert ask("/", host=host, guard=make_guard(None, local=False))[0] == 400


class TestSessions:
    def name(self, cookie=COOKIE, session="s1"):
        """By what name the page behind the guard knows a session."""
        return ask(f"/gradio_api/heartbeat/{session}", headers=[cookie])[3][0]["path"].rsplit("/", 1)[1]

    def test_a_session_is_tied_to_its_browser(self):
        other = (b"cookie", b"x=1; aipo=" + b"b" * 43 + b"; y=2")
        assert self.name() == self.name()
        assert len({self.name(), self.name(other), self.name(session="s2"), self.name(other, "s2")}) == 4

    def test_every_way_in_leads_to_the_same_session(self):
        guard = make_guard(None, unread=lambda _: 0)
        name = ask(HEARTBEAT, headers=[COOKIE], guard=guard)[3][0]["path"].rsplit("/", 1)[1]
        seen = ask(MESSAGES, headers=[COOKIE], guard=guard, query=b"session_hash=s1")[3]
        assert seen[0]["query_string"] == f"session_hash={name}".encode()
        body, headers = event(0)
        assert ask(EVENT, "POST", headers, guard, body=body)[0] == 200

    @pytest.mark.parametrize("cookie", [(b"cookie", b""), (b"cookie", b"aipo=short"), (b"x", b"")])
    @pytest.mark.parametrize(("path", "method"), [(HEARTBEAT, "GET"), (MESSAGES, "GET"), ("/picture", "POST")])
    def test_without_a_cookie_there_is_none(self, cookie, path, method):
        headers = [cookie, (b"content-length", b"0")]
        assert ask(path, method, headers, query=b"session_hash=s1")[0] == 403

    def test_the_page_brings_the_cookie_and_keeps_it(self):
        first, second = (ask("/")[1][b"set-cookie"] for _ in range(2))
        assert first != second
        assert first.endswith(b"; Path=/; HttpOnly; SameSite=Lax")
        given = (b"cookie", first.split(b";")[0])
        assert b"set-cookie" not in ask("/", headers=[given])[1]
        assert ask(HEARTBEAT, headers=[given])[0] == 200

    @pytest.mark.parametrize("session", ["", "a" * 65, "a%20b", "../x", "a.b", "ä"])
    def test_names_that_no_page_has(self, session):
        assert ask(f"/gradio_api/heartbeat/{session}", headers=[COOKIE])[0] in (400, 404)
        assert ask(MESSAGES, headers=[COOKIE], query=f"session_hash={session}".encode())[0] == 400

    @pytest.mark.parametrize("query", [b"", b"session_hash", b"session_hash=a&session_hash=b", b"\xff\xfe"])
    def test_questions_that_no_page_has(self, query):
        assert ask(MESSAGES, headers=[COOKIE], query=query)[0] == 400

    def test_a_page_that_was_never_open_is_not_served(self):
        body, headers = event(0)
        status, _, text, seen = ask(EVENT, "POST", headers, body=body)
        assert (status, seen) == (403, [])
        assert b"reload" in text
        assert ask(MESSAGES, headers=[COOKIE], query=b"session_hash=s1")[0] == 403

    def test_a_page_that_fetches_no_messages_gets_no_more(self):
        body, headers = event(1)
        for unread, status in [(None, 200), (MAX_UNREAD, 200), (MAX_UNREAD + 1, 429)]:
            guard = make_guard(None, unread=lambda _, n=unread: n)
            ask(HEARTBEAT, headers=[COOKIE], guard=guard)
            assert ask("/gradio_api/queue/join", "POST", headers, guard, body=body)[0] == status

    def test_a_job_goes_on_while_its_messages_are_fetched(self):
        now = [0.0]
        guard = make_guard(None, unread=lambda _: 0)
        guard.jobs = Jobs(1, lambda: now[0])
        name = ask(HEARTBEAT, headers=[COOKIE], guard=guard)[3][0]["path"].rsplit("/", 1)[1]
        job = guard.jobs.begin(name)

        async def fetch(*_):
            now[0] += 10 * ABANDONED
            over.append(guard.jobs.is_over(job))

        over = []
        scope = {"type": "http", "path": MESSAGES, "method": "GET", "query_string": b"session_hash=s1"}
        guard.app = fetch
        asyncio.run(guard({**scope, "headers": [(b"host", b"localhost"), COOKIE]}, None, None))
        assert over == [False]
        now[0] += ABANDONED
        assert guard.jobs.is_over(job)

    def test_there_must_be_something_to_fetch(self):
        guard = make_guard(None)
        ask(HEARTBEAT, headers=[COOKIE], guard=guard)
        assert ask(MESSAGES, headers=[COOKIE], guard=guard, query=b"session_hash=s1")[0] == 404


def test_only_what_was_checked_goes_on():
    """Not the query, nor headers from which the page behind would make addresses."""
    headers = [(b"x-forwarded-host", b"["), (b"x-gradio-server", b"http://evil.example"), (b"accept", b"*/*")]
    seen = ask("/", headers=headers, query=b"deep_link=../../x")[3][0]
    assert seen["query_string"] == b""
    assert dict(seen["headers"]) == {b"host": b"localhost:7860", b"accept": b"*/*"}
    seen = ask("/", headers=[(b"x-forwarded-host", b"faces.example")])[3][0]
    assert dict(seen["headers"])[b"x-forwarded-host"] == b"faces.example"
