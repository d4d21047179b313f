"""The web app without a browser: `aipo app` in a process of its own, and pages that talk to it as Gradio's does."""

import base64
import http.client
import io
import json
import secrets
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

PATIENCE = 120  # seconds; a test never fails for being slow
PRIOR = "celeba64-realnvp-small"
DENOISE = [None, "denoise", True, True, 0.1, 4, 1.5]  # what `Handlers.asked_for` takes, as the page sends it


def save_photo_prior(path):
    """A prior for photographs that is not trained, hence a Gaussian: it denoises a little, and at once."""
    import torch

    import aipo
    from aipo.flows import NoiseFlow
    from aipo.priors.files import save_prior_files

    flow = NoiseFlow(couplings=[2, 2, 2], hidden=[4, 4, 4], blocks=[1, 1, 1])
    flow.initialize(torch.stack([aipo.samples.load(name) for name in ("astronaut", "cat")]))
    card = {"name": path.stem, "bits": 0, "data": "-", "license": "-", "metrics": {}}
    save_prior_files(flow.requires_grad_(False), card, path)
    return path


def photo_request(header, *files):
    """The body of a request of the page for photographs."""
    return json.dumps(header).encode() + b"\n" + b"".join(files)


def photo_messages(content):
    """What such a request is answered with: messages, each with the bytes that belong to it."""
    while content:
        line, _, content = content.partition(b"\n")
        message = json.loads(line)
        yield message, content[: message["bytes"]]
        content = content[message["bytes"] :]


class Client:
    """Asks an app at an address, host and port."""

    def __init__(self, address):
        self.address = address

    def ask(self, path, method="GET", body=None, headers=None):
        """Status, headers and content of an answer, without a library that would tidy up anything first."""
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()


class App(Client):
    """An app that runs in a process of its own."""

    def __init__(self, process, log):
        self.process, self._log = process, log
        line = process.stdout.readline()
        assert line.startswith("Open http://127.0.0.1:"), line or self.log()
        super().__init__(line.split()[1].removeprefix("http://"))

    def log(self):
        """All it has written so far."""
        return Path(self._log.name).read_text()

    def memory(self, what="VmRSS"):
        """Bytes that the server has in memory; "VmHWM" is the most it ever had. Only Linux says."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(what))


@contextmanager
def running_app(*options, program=("-m", "aipo"), checked=True):
    """An app that ends with the block. Where it is `checked`, it must not end before, nor log a traceback."""
    command = [sys.executable, *program, "app", "--port", "0", "--no-browser", *options]
    with (
        tempfile.NamedTemporaryFile() as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            app = App(process, log)
            yield app
            assert not checked or process.poll() is None, "the server has ended on its own"
        finally:
            process.terminate()
            process.wait(30)
        assert not checked or "Traceback" not in app.log(), app.log()


@contextmanager
def serving(guard):
    """The same in this process, where it can be looked into."""
    from aipo.web.connections import make_server
    from aipo.web.server import open_socket

    server = make_server(guard, guard.close)
    with open_socket("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield Client(f"127.0.0.1:{listener.getsockname()[1]}")
        finally:
            server.should_exit = True
            thread.join(PATIENCE)


class Page:
    """One page that somebody has open; closed with the block."""

    def __init__(self, app, cookie=None, session=None):
        self.app = app
        self.cookie = cookie or app.ask("/")[1]["set-cookie"].split(";")[0]
        self.session = session or secrets.token_hex(6)
        self.functions = {d["api_name"]: d["id"] for d in json.loads(app.ask("/config")[2])["dependencies"]}
        self._heartbeat = http.client.HTTPConnection(app.address, timeout=PATIENCE)
        self._heartbeat.request("GET", f"/gradio_api/heartbeat/{self.session}", headers={"cookie": self.cookie})
        self._alive = self._heartbeat.getresponse()
        assert self._alive.status == 200

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._alive.close()
        self._heartbeat.close()

    def event(self, function, data=(), **more):
        """What the page would send."""
        return {"data": list(data), "fn_index": self.functions[function], "session_hash": self.session, **more}

    def post(self, path, event):
        """Status and parsed answer; `event` may be anything that JSON can say, or bytes."""
        body = event if isinstance(event, bytes) else json.dumps(event)
        headers = {"content-type": "application/json", "cookie": self.cookie}
        status, _, content = self.app.ask(f"/gradio_api/{path}", "POST", body, headers)
        return status, json.loads(content)

    def run(self, function, data=(), **more):
        """The values that an event is answered with at once."""
        status, answer = self.post("run/predict", self.event(function, data, **more))
        assert status == 200, answer
        return answer["data"]

    def join(self, asked=DENOISE, painted=None):
        """Ask for a restoration without listening to it."""
        return self.post("queue/join", self.event("restore", [PRIOR, *asked, painted]))

    def listen(self):
        """The messages of the queue, until there are no more."""
        connection = http.client.HTTPConnection(self.app.address, timeout=PATIENCE)
        try:
            path = f"/gradio_api/queue/data?session_hash={self.session}"
            connection.request("GET", path, headers={"cookie": self.cookie})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            for line in answer:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
        finally:
            connection.close()

    def restore(self, asked=DENOISE, painted=None):
        """How a restoration ends: its last message."""
        self.run("begin")
        status, answer = self.join(asked, painted)
        assert status == 200, answer
        last = [message for message in self.listen() if message["msg"] == "process_completed"]
        self.run("end")
        assert last[-1]["success"], last
        return last[-1]["output"]["data"][0]

    def send(self, content):
        """Upload a file: what the server makes of it."""
        headers = {"cookie": self.cookie, "content-type": "application/octet-stream"}
        status, _, answer = self.app.ask("/picture", "POST", content, headers)
        assert status == 200, answer
        return json.loads(answer)

    def upload(self, content):
        """Upload a file and use it: the picture that the page then shows, as an image."""
        sent = self.send(content)
        taken = self.run("take_upload", [sent])
        assert taken[2] == {"taken": True}, taken
        return self.preview([None, "denoise", False, True, 0.1, 4, 1.5])

    def preview(self, asked=DENOISE):
        """The picture in the painter, as an image."""
        url = self.run("refresh", asked)[0]["image"]
        return Image.open(io.BytesIO(base64.b64decode(url.split(",")[1])))
