"""The web app without a browser: what is uploaded, what is computed, and who may ask for what."""

import asyncio
import base64
import io
import json
import socket
import struct
import sys
import threading
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

import aipo
from aipo.cli import app
from aipo.errors import InputError
from aipo.prior import Prior
from aipo.web import session
from aipo.web.jobs import Cores, Jobs
from aipo.web.mask import mask_text, parse_mask, scratches
from aipo.web.server import MAX_BODY, Guard, open_socket
from aipo.web.session import Wish, measure, restore
from aipo.web.sureness import doubt_map, facts
from aipo.web.upload import MAX_BYTES, MAX_PIXELS, read_upload, sent_bytes
from small_problem import SHAPE, build_flow


def encoded(array, format="PNG", **options):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format=format, **options)
    return buffer.getvalue()


def decoded(url):
    assert url.startswith("data:image/png;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))))


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


class TestUpload:
    def test_a_picture_of_the_right_size_is_taken_as_it_is(self):
        array = noise(64, 64, 3)
        x, note = read_upload(encoded(array), (64, 64))
        assert torch.equal((x * 255).round().to(torch.uint8).permute(1, 2, 0), torch.from_numpy(array))
        assert note == "Taken as it is: 64x64 pixels."

    def test_the_square_in_the_middle_is_scaled(self):
        array = np.zeros((128, 256, 3), np.uint8)
        array[:, 64:192] = noise(128, 128, 3)
        x, note = read_upload(encoded(array), (64, 64))
        means = array[:, 64:192].reshape(64, 2, 64, 2, 3).mean((1, 3))
        assert np.abs(x.permute(1, 2, 0).numpy() * 255 - means).max() <= 1
        assert "256x128" in note
        assert "middle" in note

    def test_the_face_of_a_photograph_is_found(self):
        sample = (aipo.samples.load("astronaut") * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        photograph = np.full((300, 400, 3), 128, np.uint8)
        photograph[40:232, 20:212] = sample.repeat(3, 0).repeat(3, 1)
        x, note = read_upload(encoded(photograph), (64, 64))
        assert "its face was found" in note
        # The sample itself lies where the priors expect it, within a few pixels.
        truth = torch.from_numpy(sample).permute(2, 0, 1) / 255
        moved = [x.roll((i, j), (1, 2)) for i in range(-4, 5) for j in range(-4, 5)]
        assert min((m - truth)[:, 8:-8, 8:-8].square().mean() for m in moved) < 0.01

    def test_a_small_picture_is_enlarged(self):
        x, note = read_upload(encoded(np.full((16, 16, 3), 51, np.uint8)), (64, 64))
        assert x.shape == (3, 64, 64)
        assert torch.allclose(x, torch.tensor(0.2))
        assert note == "Your picture has 16x16 pixels; it was scaled to 64x64."

    def test_grey_becomes_colour_and_transparent_becomes_white(self):
        grey, _ = read_upload(encoded(np.full((64, 64), 51, np.uint8)), (64, 64))
        assert torch.allclose(grey, torch.tensor(0.2))
        clear, _ = read_upload(encoded(np.zeros((64, 64, 4), np.uint8)), (64, 64))
        assert torch.equal(clear, torch.ones(3, 64, 64))

    def test_a_turned_photograph_is_set_upright(self):
        array = np.zeros((64, 64, 3), np.uint8)
        array[:32] = 255
        exif = Image.Exif()
        exif[0x0112] = 6  # stored turned by 90 degrees
        x, _ = read_upload(encoded(array, exif=exif), (64, 64))
        assert x[:, :, 32:].mean() == 1
        assert x[:, :, :32].mean() == 0

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"no picture", "this is no picture"),
            (b"", "this is no picture"),
            (encoded(noise(64, 64, 3))[:500], "a damaged one"),
            (b"x" * (MAX_BYTES + 1), "at most 20 MB"),
            (encoded(noise(64, 64).astype(np.uint16)), "more than 8 bits"),
        ],
    )
    def test_what_cannot_be_used_is_refused_in_one_line(self, content, message):
        with pytest.raises(InputError, match=message) as caught:
            read_upload(content, (64, 64))
        assert "\n" not in str(caught.value)

    @given(st.binary(max_size=64))
    def test_what_the_page_sends_arrives(self, content):
        sent = {"bytes": len(content), "data": base64.b64encode(content).decode()}
        assert sent_bytes(sent) == content

    @pytest.mark.parametrize(
        ("sent", "message"),
        [
            (None, "nothing was sent"),
            ("/etc/passwd", "nothing was sent"),
            ({"path": "/etc/passwd"}, "did not arrive whole"),
            ({"bytes": 3, "data": "/etc/passwd?"}, "did not arrive whole"),
            ({"bytes": 3, "data": 7}, "did not arrive whole"),
            ({"bytes": MAX_BYTES + 1, "data": None}, "at most 20 MB"),
        ],
    )
    def test_only_content_is_taken(self, sent, message):
        with pytest.raises(InputError, match=message):
            sent_bytes(sent)

    @pytest.mark.parametrize("side", [int(MAX_PIXELS**0.5) + 1, 100_000])
    def test_a_bomb_is_refused_by_its_header(self, side):
        def chunk(kind, data):
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
        bomb = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
        with pytest.raises(InputError, match="at most 40 million pixels"):
            read_upload(bomb, (64, 64))


class TestMask:
    @given(st.lists(st.integers(0, 1), min_size=12, max_size=12))
    def test_text_and_back(self, values):
        mask = torch.tensor(values, dtype=torch.float32).view(1, 3, 4)
        assert torch.equal(parse_mask(mask_text(mask), (3, 4)), mask)

    @pytest.mark.parametrize("text", ["", "0" * 11, "0" * 13, "2" * 12, None, 7, ["0"] * 12, "/etc/passwd0"])
    def test_anything_else_is_refused(self, text):
        with pytest.raises(InputError, match="12 characters"):
            parse_mask(text, (3, 4))

    def test_the_first_mask_leaves_most_of_the_face(self):
        mask = scratches()
        assert mask.shape == (1, 64, 64)
        assert 0.05 < (mask == 0).float().mean() < 0.3


@pytest.fixture(scope="module")
def prior():
    return Prior(build_flow())


@pytest.fixture(scope="module")
def picture():
    return torch.rand(SHAPE, generator=torch.Generator().manual_seed(1))


def hole():
    mask = torch.ones(1, *SHAPE[1:])
    mask[:, 2:5, 3:6] = 0
    return mask


class TestMeasure:
    def test_a_damaged_picture_is_the_measurement_itself(self, picture):
        for task in ("denoise", "deblur"):
            measurement = measure(Wish(picture, task, False, 0.1))
            assert torch.equal(measurement.y[0], picture)
            assert measurement.truth is None

    def test_damage_is_that_of_the_operator_and_repeats(self, picture):
        measurement = measure(Wish(picture, "superres", True, 0.01, factor=2))
        assert measurement.y.shape == (1, 3, 4, 4)
        assert torch.equal(measurement.y, measure(Wish(picture, "superres", True, 0.01, factor=2)).y)
        assert torch.equal(measurement.truth, picture)
        means = picture.view(3, 4, 2, 4, 2).mean((2, 4))
        assert 0 < (measurement.y[0] - means).square().mean().sqrt() < 0.02

    def test_what_is_missing_is_shown_grey(self, picture):
        measurement = measure(Wish(picture, "inpaint", False, 0.02, hole()))
        missing = (hole() == 0).expand(SHAPE)
        assert (measurement.before[missing] == 0.5).all()
        assert torch.equal(measurement.before[~missing], picture[~missing])
        assert (measurement.y[0][missing] == 0).all()

    def test_a_grey_picture_is_shown_grey(self, picture):
        before = measure(Wish(picture, "colorize", False, 0.02)).before
        weights = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
        assert torch.allclose(before, (weights * picture).sum(0).expand(SHAPE), atol=1e-6)

    def test_noise_is_estimated_only_where_it_was_asked_for(self):
        x = aipo.samples.load("astronaut")
        noisy = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
        assert measure(Wish(noisy, "denoise", False, None)).sigma == pytest.approx(0.1, rel=0.15)
        assert measure(Wish(noisy, "denoise", False, 0.07)).sigma == 0.07

    @pytest.mark.parametrize(
        ("wish", "message"),
        [
            (("inpaint", True, 0.02, None), "nothing is painted"),
            (("inpaint", True, 0.02, torch.ones(1, 8, 8)), "nothing is painted"),
            (("inpaint", True, 0.02, torch.zeros(1, 8, 8)), "mask is 0 everywhere"),
            (("sense", True, 0.02), "unknown task"),
            (("denoise", True, None), "how much noise"),
            (("denoise", True, -1.0), "sigma"),
            (("superres", True, 0.02, None, 3), "factor is 3"),
        ],
    )
    def test_bad_wishes(self, picture, wish, message):
        with pytest.raises(InputError, match=message):
            measure(Wish(picture, *wish))

    def test_a_flat_picture_has_no_noise_to_estimate(self):
        with pytest.raises(InputError, match="cannot be estimated"):
            measure(Wish(torch.full((3, 16, 16), 0.5), "denoise", False, None))


def never():
    return False


class TestRestore:
    @pytest.mark.parametrize("task", session.TASKS)
    def test_it_ends_where_the_library_ends(self, prior, picture, task):
        wish = Wish(picture, task, True, 0.1, hole(), factor=2)
        *_, last = restore(wish, prior, never, 600, Cores(1))
        measurement = measure(wish)
        problem = aipo.MapProblem(prior, measurement.operator, aipo.Gaussian(0.1), measurement.y)
        choice = aipo.choose_lambda(problem)
        record = json.loads(json.dumps(last))["record"]
        assert last["status"] == "done"
        assert record["lam"] == pytest.approx(choice.lam.item(), rel=1e-3)
        assert record["loss"] == pytest.approx(choice.result.loss.item(), abs=0.05)
        assert record["chi2"] == pytest.approx(problem.chi2(choice.result.x).item(), rel=1e-2)
        frames = last["frames"]
        assert frames[last["chosen"]]["lam"] == record["lam"]
        assert [f["lam"] for f in frames] == sorted(f["lam"] for f in frames)
        assert {f["lam"] for f in frames} >= set(choice.path.lam[0].tolist()) - {record["lam"]}
        shown = decoded(frames[last["chosen"]]["image"]).transpose(2, 0, 1) / 255
        assert np.abs(shown - choice.result.x[0].clamp(0, 1).numpy()).max() < 0.01
        assert record["versions"] == {"aipo": aipo.__version__, "torch": torch.__version__}
        assert len(last["facts"]) == 3

    def test_the_first_picture_needs_no_evaluation_of_the_flow(self, prior, picture, monkeypatch):
        def refuse(*_):
            raise AssertionError("the flow was evaluated")

        _ = prior.surrogate  # measured once, when a prior is loaded
        monkeypatch.setattr(aipo.MapProblem, "evaluate", refuse)
        first = next(iter(restore(Wish(picture, "inpaint", True, 0.1, hole()), prior, never, 600, Cores(1))))
        assert first["status"] == "running"
        assert decoded(first["live"]["image"]).shape == (8, 8, 3)

    def test_the_path_grows_message_by_message(self, prior, picture):
        *messages, last = restore(Wish(picture, "denoise", True, 0.1), prior, never, 600, Cores(1))
        lengths = [len(m["frames"]) for m in messages]
        assert lengths[0] == 0
        assert lengths == sorted(lengths)
        assert lengths[-1] >= len(last["frames"]) - 2  # all but the last one solved and the one that was chosen
        assert all(m["status"] == "running" for m in messages)
        assert messages[-1]["live"]["evals"] > messages[1]["live"]["evals"] >= 1

    def test_stop_ends_the_computation_and_leaves_the_path_so_far(self, prior, picture, monkeypatch):
        evaluations = []
        evaluate = aipo.MapProblem.evaluate
        monkeypatch.setattr(aipo.MapProblem, "evaluate", lambda p, x: evaluations.append(1) or evaluate(p, x))
        stop = threading.Event()
        messages = []
        for message in restore(Wish(picture, "denoise", True, 0.1), prior, stop.is_set, 600, Cores(1)):
            messages.append(message)
            if len(message["frames"]) == 2 and not stop.is_set():
                stop.set()
                spent = len(evaluations)
        assert len(evaluations) == spent
        last = messages[-1]
        assert last["status"] == "stopped"
        assert "you" in last["text"]
        assert last["reached"] == (last["frames"][-1]["chi2"] >= last["target"])
        assert 2 <= len(last["frames"]) <= 3
        assert last["record"]["evaluations"] <= spent
        assert [f["image"] for f in last["frames"] if f["lam"] != last["record"]["lam"]] == [
            f["image"] for f in messages[-2]["frames"] if f["lam"] != last["record"]["lam"]
        ]

    def test_stop_before_anything_is_solved(self, prior, picture):
        *_, last = restore(Wish(picture, "denoise", True, 0.1), prior, lambda: True, 600, Cores(1))
        assert last["status"] == "stopped"
        assert last["frames"] == []

    def test_time_runs_out(self, prior, picture):
        *_, last = restore(Wish(picture, "denoise", True, 0.1), prior, never, 0, Cores(1))
        assert last["status"] == "stopped"
        assert "time limit" in last["text"]

    def test_bad_input_is_a_message(self, prior, picture):
        assert list(restore(Wish(picture, "inpaint", True, 0.1), prior, never, 600, Cores(1))) == [
            {"status": "failed", "text": "Nothing is painted yet: paint over what is missing, then press Restore."}
        ]

    def test_a_solver_that_fails_is_a_message(self, prior, picture):
        flow = build_flow()
        for p in flow.parameters():
            p.fill_(torch.nan)
        broken = Prior(flow, card={"surrogate": None})
        broken.__dict__["surrogate"] = prior.surrogate
        *_, last = restore(Wish(picture, "denoise", True, 0.1), broken, never, 600, Cores(1))
        assert last["status"] == "failed"
        assert "non finite" in last["text"]

    def test_two_at_once_do_not_disturb_each_other(self, prior, picture):
        wishes = [Wish(picture, "denoise", True, 0.1), Wish(picture.flip(2), "deblur", True, 0.05)]
        alone = [list(restore(wish, prior, never, 600, Cores(1)))[-1]["record"]["lam"] for wish in wishes]
        found, cores = [None, None], Cores(1)

        def work(i):
            found[i] = list(restore(wishes[i], prior, never, 600, cores))[-1]["record"]["lam"]

        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == pytest.approx(alone, rel=1e-3)
        assert cores.jobs == 0


class TestSureness:
    @pytest.fixture
    def problem(self, prior, picture):
        measurement = measure(Wish(picture, "denoise", True, 0.1))
        return aipo.MapProblem(prior, measurement.operator, aipo.Gaussian(0.1), measurement.y)

    @pytest.mark.parametrize(
        ("factor", "good", "words"),
        [(1.0, True, "as large as the noise"), (3.0, False, "Less is left over"), (0.2, False, "More is left over")],
    )
    def test_a_residual_that_is_not_as_expected_is_told(self, problem, factor, good, words):
        choice = aipo.choose_lambda(problem, "fixed", lam=1000.0)
        expected = factor * problem.chi2(choice.result.x)
        fact = facts(problem, aipo.Choice(**{**vars(choice), "target": expected}))[0]
        assert fact["good"] == good
        assert words in fact["text"]

    def test_a_jump_of_the_path_is_told(self, problem):
        choice = aipo.choose_lambda(problem)
        assert facts(problem, choice)[2]["good"]
        P = choice.path.P.clone()
        P[0, 2:] += 1000
        jumped = aipo.Path(**{**vars(choice.path), "P": P})
        assert not facts(problem, aipo.Choice(**{**vars(choice), "path": jumped}))[2]["good"]

    def test_a_large_gap_is_told(self, problem):
        choice = aipo.choose_lambda(problem)
        assert facts(problem, choice)[1]["good"]
        wide = aipo.Path(**{**vars(choice.path), "gap": choice.path.gap + 100})
        assert not facts(problem, aipo.Choice(**{**vars(choice), "path": wide}))[1]["good"]

    def test_doubt_is_where_the_picture_moves(self, problem):
        path = aipo.follow_path(problem, [0.5, 1.0, 2.0])
        x = torch.full_like(path.x, 0.5)
        x[0, :, :, 3, 4] = torch.tensor([0.2, 0.5, 0.8])[:, None]
        image, peak = doubt_map(aipo.Path(**{**vars(path), "x": x}), 1.0)
        # Linear in log lam from 0.2 to 0.8: nine even steps have the standard deviation 0.6 / 8 * sqrt(80 / 12).
        assert peak == pytest.approx(0.6 / 8 * (80 / 12) ** 0.5, rel=1e-4)
        assert image.sum(0).argmax().item() == 3 * 8 + 4
        assert (image.flatten(1).unique(dim=1)).shape[1] == 2


class TestJobs:
    def test_a_user_has_one_job(self):
        jobs = Jobs(2)
        first = jobs.begin("a")
        other = jobs.begin("b")
        second = jobs.begin("a")
        assert first.is_set()
        assert not second.is_set()
        assert not other.is_set()
        jobs.stop("a")
        jobs.stop("nobody")
        assert second.is_set()
        assert not other.is_set()

    def test_a_job_that_is_over_is_forgotten_but_not_its_successor(self):
        jobs = Jobs(2)
        first = jobs.begin("a")
        second = jobs.begin("a")
        jobs.end("a", first)
        assert jobs.current("a") is second
        jobs.end("a", second)
        assert len(jobs) == 0

    def test_more_than_the_limit_are_told_to_come_back(self):
        jobs = Jobs(2)
        jobs.begin("a")
        other = jobs.begin("b")
        for refused in (jobs.begin, jobs.current):
            with pytest.raises(InputError, match="too many people"):
                refused("c")
        jobs.begin("a")  # one more of the same user is no more
        jobs.leave("b")
        jobs.leave("nobody")
        assert other.is_set()
        assert not jobs.begin("c").is_set()

    def test_cores_are_shared(self, monkeypatch):
        given = []
        monkeypatch.setattr(torch, "set_num_threads", given.append)
        cores = Cores(4)
        with cores.job():
            cores.take_share()
            with cores.job(), cores.job():
                cores.take_share()
                with cores.job(), cores.job():
                    cores.take_share()
            cores.take_share()
        assert given == [4, 1, 1, 4]


def ask(path, method="GET", headers=()):
    """What a guarded app that answers everything with 200 says."""

    async def inner(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"secret"})

    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "method": method, "headers": list(headers)}
    asyncio.run(Guard(inner)(scope, None, send))
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


class TestServer:
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
            "/monitoring",
            "/docs",
            "/openapi.json",
        ],
    )
    def test_closed_paths(self, path):
        status, _, body = ask(path)
        assert (status, body) == (404, b"")

    def test_open_paths_carry_the_policy(self):
        status, headers, body = ask("/")
        assert (status, body) == (200, b"secret")
        assert b"default-src 'self'" in headers[b"content-security-policy"]
        assert b"http" not in headers[b"content-security-policy"]

    @pytest.mark.parametrize(
        ("length", "status"),
        [(None, 411), (b"many", 411), (b"12", 200), (b"%d" % MAX_BODY, 200), (b"%d" % (MAX_BODY + 1), 413)],
    )
    def test_bodies_have_a_limit(self, length, status):
        headers = [] if length is None else [(b"content-length", length)]
        assert ask("/gradio_api/queue/join", "POST", headers)[0] == status

    def test_a_taken_port_is_said_to_be_so(self):
        with open_socket("127.0.0.1", 0) as listener:
            port = listener.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port)):
                pass
            with pytest.raises(InputError, match=f"port {port} is taken"):
                open_socket("127.0.0.1", port)

    def test_an_address_of_another_machine(self):
        with pytest.raises(InputError, match=r"cannot listen on 192\.0\.2\.1:0"):
            open_socket("192.0.2.1", 0)

    def test_without_gradio_it_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "gradio", None)
        result = CliRunner().invoke(app, ["app", "--no-browser"])
        assert result.exit_code == 2
        assert result.stderr == "aipo: the app needs Gradio: pip install '.[app]' in the directory of AIPO\n"
