"""What the web app computes: the measurement that is meant, the messages of a restoration, and how sure it is."""

import base64
import io
import json
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import aipo
from aipo.errors import InputError
from aipo.priors.prior import Prior
from aipo.web.confidence import doubt_map, facts
from aipo.web.jobs import Cores
from aipo.web.request import TASKS, Request, mask_text, measure, parse_mask, scratches
from aipo.web.session import restore
from small_problem import SHAPE, build_flow


def decoded(url):
    assert url.startswith("data:image/png;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))))


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
            measurement = measure(Request(picture, task, False, 0.1))
            assert torch.equal(measurement.y[0], picture)
            assert measurement.truth is None

    def test_damage_is_that_of_the_operator_and_repeats(self, picture):
        measurement = measure(Request(picture, "superres", True, 0.01, factor=2))
        assert measurement.y.shape == (1, 3, 4, 4)
        assert torch.equal(measurement.y, measure(Request(picture, "superres", True, 0.01, factor=2)).y)
        assert torch.equal(measurement.truth, picture)
        means = picture.view(3, 4, 2, 4, 2).mean((2, 4))
        assert 0 < (measurement.y[0] - means).square().mean().sqrt() < 0.02

    def test_what_is_missing_is_shown_gray(self, picture):
        measurement = measure(Request(picture, "inpaint", False, 0.02, hole()))
        missing = (hole() == 0).expand(SHAPE)
        assert (measurement.before[missing] == 0.5).all()
        assert torch.equal(measurement.before[~missing], picture[~missing])
        assert (measurement.y[0][missing] == 0).all()

    def test_a_gray_picture_is_shown_gray(self, picture):
        before = measure(Request(picture, "colorize", False, 0.02)).before
        weights = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
        assert torch.allclose(before, (weights * picture).sum(0).expand(SHAPE), atol=1e-6)

    def test_noise_is_estimated_only_where_it_was_asked_for(self):
        x = aipo.samples.load("astronaut")
        noisy = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
        assert measure(Request(noisy, "denoise", False, None)).sigma == pytest.approx(0.1, rel=0.15)
        assert measure(Request(noisy, "denoise", False, 0.07)).sigma == 0.07

    @pytest.mark.parametrize(
        ("request_", "message"),
        [
            (("inpaint", True, 0.02, None), "nothing is painted"),
            (("inpaint", True, 0.02, torch.ones(1, 8, 8)), "nothing is painted"),
            (("inpaint", True, 0.02, torch.zeros(1, 8, 8)), "mask is 0 everywhere"),
            (("demosaic", True, 0.02), "unknown task"),
            (("denoise", True, None), "how much noise"),
            (("denoise", True, -1.0), "sigma"),
            (("superres", True, 0.02, None, 3), "factor is 3"),
        ],
    )
    def test_bad_requests(self, picture, request_, message):
        with pytest.raises(InputError, match=message):
            measure(Request(picture, *request_))

    def test_a_flat_picture_has_no_noise_to_estimate(self):
        with pytest.raises(InputError, match="cannot be estimated"):
            measure(Request(torch.full((3, 16, 16), 0.5), "denoise", False, None))


def never():
    return False


class TestRestore:
    @pytest.mark.parametrize("task", TASKS)
    def test_it_ends_where_the_library_ends(self, prior, picture, task):
        asked = Request(picture, task, True, 0.1, hole(), factor=2)
        *_, last = restore(asked, prior, never, 600, Cores(1))
        measurement = measure(asked)
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
        first = next(iter(restore(Request(picture, "inpaint", True, 0.1, hole()), prior, never, 600, Cores(1))))
        assert first["status"] == "running"
        assert decoded(first["live"]["image"]).shape == (8, 8, 3)

    def test_the_path_grows_message_by_message(self, prior, picture):
        *messages, last = restore(Request(picture, "denoise", True, 0.1), prior, never, 600, Cores(1))
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
        for message in restore(Request(picture, "denoise", True, 0.1), prior, stop.is_set, 600, Cores(1)):
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
        *_, last = restore(Request(picture, "denoise", True, 0.1), prior, lambda: True, 600, Cores(1))
        assert last["status"] == "stopped"
        assert last["frames"] == []

    def test_time_runs_out(self, prior, picture):
        *_, last = restore(Request(picture, "denoise", True, 0.1), prior, never, 0, Cores(1))
        assert last["status"] == "stopped"
        assert "time limit" in last["text"]

    def test_bad_input_is_a_message(self, prior, picture):
        assert list(restore(Request(picture, "inpaint", True, 0.1), prior, never, 600, Cores(1))) == [
            {"status": "failed", "text": "Nothing is painted yet: paint over what is missing, then press Restore."}
        ]

    def test_a_solver_that_fails_is_a_message(self, prior, picture):
        flow = build_flow()
        for p in flow.parameters():
            p.fill_(torch.nan)
        broken = Prior(flow, card={"surrogate": None})
        broken.__dict__["surrogate"] = prior.surrogate
        *_, last = restore(Request(picture, "denoise", True, 0.1), broken, never, 600, Cores(1))
        assert last["status"] == "failed"
        assert "non finite" in last["text"]

    def test_two_at_once_do_not_disturb_each_other(self, prior, picture):
        requests = [Request(picture, "denoise", True, 0.1), Request(picture.flip(2), "deblur", True, 0.05)]
        alone = [list(restore(asked, prior, never, 600, Cores(1)))[-1]["record"]["lam"] for asked in requests]
        found, cores = [None, None], Cores(1)

        def work(i):
            found[i] = list(restore(requests[i], prior, never, 600, cores))[-1]["record"]["lam"]

        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == pytest.approx(alone, rel=1e-3)
        assert cores.jobs == 0


class TestConfidence:
    @pytest.fixture
    def problem(self, prior, picture):
        measurement = measure(Request(picture, "denoise", True, 0.1))
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
        jumped = aipo.SolutionPath(**{**vars(choice.path), "P": P})
        assert not facts(problem, aipo.Choice(**{**vars(choice), "path": jumped}))[2]["good"]

    def test_a_large_gap_is_told(self, problem):
        choice = aipo.choose_lambda(problem)
        assert facts(problem, choice)[1]["good"]
        wide = aipo.SolutionPath(**{**vars(choice.path), "gap": choice.path.gap + 100})
        assert not facts(problem, aipo.Choice(**{**vars(choice), "path": wide}))[1]["good"]

    def test_doubt_is_where_the_picture_moves(self, problem):
        path = aipo.follow_path(problem, [0.5, 1.0, 2.0])
        x = torch.full_like(path.x, 0.5)
        x[0, :, :, 3, 4] = torch.tensor([0.2, 0.5, 0.8])[:, None]
        image, peak = doubt_map(aipo.SolutionPath(**{**vars(path), "x": x}), 1.0)
        # Linear in log lam from 0.2 to 0.8: nine even steps have the standard deviation 0.6 / 8 * sqrt(80 / 12).
        assert peak == pytest.approx(0.6 / 8 * (80 / 12) ** 0.5, rel=1e-4)
        assert image.sum(0).argmax().item() == 3 * 8 + 4
        assert (image.flatten(1).unique(dim=1)).shape[1] == 2
