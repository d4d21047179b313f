"""What a person does with the app, in a real browser."""

import hashlib
import http.client
import io
import json

import numpy as np
import pytest
from PIL import Image

import aipo
from conftest import ARTIFACTS

PIXELS = """(selector) => {
  const canvas = document.querySelector(selector);
  return Array.from(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data);
}"""


def pixels(page, selector):
    return np.array(page.evaluate(PIXELS, selector), np.uint8).reshape(64, 64, 4)[..., :3]


def snap(page, name):
    page.screenshot(path=ARTIFACTS / f"{name}.png", full_page=True)


def choose_task(page, task):
    page.check(f"#task input[value={task}]")
    page.wait_for_function(
        "(wanted) => document.querySelector('.painter .tools').hidden === wanted", arg=task != "inpaint"
    )


def press_restore(page):
    page.click("#restore")
    page.wait_for_selector('.viewer:not([data-status="idle"])')


def wait_for(page, status):
    page.wait_for_selector(f'.viewer[data-status="{status}"]')


def move(page, selector, value):
    page.eval_on_selector(
        selector, "(input, value) => { input.value = value; input.dispatchEvent(new Event('input')); }", value
    )


def download(page, selector):
    with page.expect_download() as waiting:
        page.click(selector)
    return waiting.value.suggested_filename, waiting.value.path().read_bytes()


def test_restore_a_sample_and_look_at_every_lambda(visit):
    page = visit()
    snap(page, "1-opened")
    # Every streamed picture leaves its mark as it is drawn.
    page.evaluate("""() => {
      window.seen = new Set();
      const canvas = document.querySelector(".viewer .after"), viewer = document.querySelector(".viewer");
      const look = () => {
        if (viewer.dataset.status === "running") window.seen.add(canvas.toDataURL());
        requestAnimationFrame(look);
      };
      look();
    }""")
    press_restore(page)
    wait_for(page, "running")
    assert page.is_visible("#stop")
    page.wait_for_function("document.querySelector('.viewer').dataset.frames > 2")
    snap(page, "2-running")
    wait_for(page, "done")
    assert page.evaluate("window.seen.size") >= 4
    page.wait_for_selector("#restore:visible")
    assert not page.is_visible("#stop")
    snap(page, "3-done")

    truth = aipo.samples.load("astronaut").permute(1, 2, 0).numpy() * 255
    before, chosen = pixels(page, ".viewer .before"), pixels(page, ".viewer .after")
    assert np.square(chosen - truth).mean() < np.square(before - truth).mean() / 4
    assert "chosen" in page.inner_text(".viewer .lam")
    assert page.locator(".viewer .facts li").count() == 3

    name, png = download(page, ".viewer .png")
    assert name == "restored.png"
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png)).convert("RGB")), chosen)
    name, text = download(page, ".viewer .json")
    assert name == "restored.json"
    record = json.loads(text)
    assert record["settings"]["task"] == "denoise"
    assert record["status"] == "done"
    assert record["downloaded_picture"] == {
        "lam": record["lam"], "chi2": record["chi2"], "psnr": record["psnr"], "chosen": True, "interpolated": False,
    }  # fmt: skip
    assert {"D", "P", "evaluations", "seconds", "versions", "path"} <= record.keys()

    variation = {}
    for position in (0, 500, 1000):
        move(page, ".viewer .slider", position)
        picture = pixels(page, ".viewer .after").astype(float)
        variation[position] = np.abs(np.diff(picture, axis=0)).mean()
        advice = page.inner_text(".viewer .advice")
        assert advice.startswith("Too little" if position == 0 else "Too much"), (position, advice)
    assert variation[0] > variation[500] > variation[1000]  # more prior, smoother picture
    snap(page, "4-too-much")
    _, text = download(page, ".viewer .json")
    shown = json.loads(text)["downloaded_picture"]
    assert shown["lam"] == pytest.approx(record["path"][-1]["lam"])
    assert not shown["chosen"]
    page.click(".viewer .back")
    assert np.array_equal(pixels(page, ".viewer .after"), chosen)

    page.click("[data-view=truth]")
    assert np.array_equal(pixels(page, ".viewer .after"), np.round(truth).astype(np.uint8))
    page.click("[data-view=doubt]")
    snap(page, "5-doubt")
    assert not np.array_equal(pixels(page, ".viewer .after"), chosen)


def test_the_comparison_is_dragged(visit):
    page = visit()
    press_restore(page)
    wait_for(page, "done")
    stage = page.locator(".viewer .stage").bounding_box()
    for share in (0.2, 0.8):
        page.mouse.move(stage["x"] + stage["width"] * 0.5, stage["y"] + stage["height"] * 0.5)
        page.mouse.down()
        page.mouse.move(stage["x"] + stage["width"] * share, stage["y"] + stage["height"] * 0.5, steps=5)
        page.mouse.up()
        left = page.eval_on_selector(".viewer .divider", "(line) => parseFloat(line.style.left)")
        assert left == pytest.approx(100 * share, abs=6)


def test_paint_what_is_missing(visit):
    page = visit(dark=True)
    page.click("#source [data-name=drawn-2]")
    choose_task(page, "inpaint")
    page.click(".painter .clear")
    press_restore(page)
    wait_for(page, "failed")
    assert "Nothing is painted" in page.inner_text(".viewer .status")
    page.wait_for_selector("#restore:visible")

    box = page.locator(".painter .mask").bounding_box()
    for row in (0.4, 0.45):
        page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + row * box["height"])
        page.mouse.down()
        page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + row * box["height"], steps=7)
        page.mouse.up()
    painted = (pixels(page, ".painter .mask")[..., 0] > 0).copy()
    assert painted[28, 20:44].all()
    assert 100 < painted.sum() < 600
    snap(page, "6-painted")
    press_restore(page)
    wait_for(page, "done")
    snap(page, "7-inpainted")
    before, after = pixels(page, ".viewer .before"), pixels(page, ".viewer .after")
    assert (before[painted] == 128).all()
    assert not (before[~painted] == 128).all(axis=1).any()
    assert (after[painted] != 128).mean() > 0.9
    record = json.loads(download(page, ".viewer .json")[1])
    assert record["settings"]["missing_pixels"] == painted.sum()

    page.click(".painter .erase")
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.4 * box["height"])
    page.mouse.down()
    page.mouse.up()
    erased = pixels(page, ".painter .mask")[..., 0] > 0
    assert 0 < erased.sum() < painted.sum()


def test_stop_leaves_the_path_so_far(visit):
    page = visit()
    press_restore(page)
    page.wait_for_function("document.querySelector('.viewer').dataset.frames > 1")
    page.click("#stop")
    wait_for(page, "stopped")
    snap(page, "8-stopped")
    assert "Stopped by you" in page.inner_text(".viewer .status")
    record = json.loads(download(page, ".viewer .json")[1])
    assert record["status"] == "stopped"
    assert record["evaluations"] < record["settings"]["evaluations_at_most"]
    pictures = set()
    for position in (0, 1000):
        move(page, ".viewer .slider", position)
        pictures.add(hashlib.sha256(pixels(page, ".viewer .after").tobytes()).hexdigest())
    assert len(pictures) == 2
    page.wait_for_selector("#restore:visible")


def test_upload(visit, tmp_path):
    page = visit()
    (tmp_path / "bad.png").write_bytes(b"not a picture")
    page.set_input_files("#source input[type=file]", tmp_path / "bad.png")
    page.wait_for_selector("text=this is not a picture, or it is damaged")
    snap(page, "9-bad-upload")
    assert page.get_attribute("#source [data-name=astronaut]", "aria-pressed") == "true"

    x = aipo.samples.load("astronaut").permute(1, 2, 0).numpy()
    noisy = np.clip(x + 0.1 * np.random.default_rng(0).standard_normal(x.shape), 0, 1)
    noisy = np.round(255 * noisy).astype(np.uint8)
    wide = np.zeros((64, 100, 3), np.uint8)
    wide[:, 18:82] = noisy
    Image.fromarray(wide).save(tmp_path / "wide.png")
    page.set_input_files("#source input[type=file]", tmp_path / "wide.png")
    page.wait_for_selector("text=Your picture has 100x64 pixels")
    assert np.array_equal(pixels(page, ".painter .picture"), noisy)
    assert not page.is_checked("#damage input")
    assert page.locator("#source [aria-pressed=true]").count() == 0
    assert page.is_checked("#estimate input")
    press_restore(page)
    wait_for(page, "done")
    snap(page, "10-uploaded")
    record = json.loads(download(page, ".viewer .json")[1])
    assert record["settings"]["sigma_estimated"]
    assert record["settings"]["sigma"] == pytest.approx(0.1, rel=0.25)
    after = pixels(page, ".viewer .after")
    assert np.square(after - 255 * x).mean() < np.square(noisy - 255 * x).mean() / 4
    assert not page.is_visible("[data-view=truth]")


@pytest.mark.parametrize("task", ["superres", "deblur", "colorize"])
def test_other_tasks(visit, task):
    page = visit(width=390, height=844, dark=task == "colorize")
    choose_task(page, task)
    page.wait_for_selector(f"#{ {'superres': 'factor', 'deblur': 'blur'}.get(task, 'sigma') }:visible")
    press_restore(page)
    wait_for(page, "done")
    snap(page, f"11-phone-{task}")
    record = json.loads(download(page, ".viewer .json")[1])
    assert record["settings"]["task"] == task
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_five_people_at_once(visit):
    pages = [visit() for _ in range(5)]
    for page, name in zip(pages, ["astronaut", "drawn-1", "drawn-2", "cat", "astronaut"], strict=True):
        page.click(f"#source [data-name={name}]")
    for page in pages:
        press_restore(page)
    for page in pages:
        wait_for(page, "done")
    results = [hashlib.sha256(pixels(page, ".viewer .after").tobytes()).hexdigest() for page in pages]
    assert len(set(results)) == 4  # two asked for the same


def ask(address, path, method="GET", body=None, **headers):
    """Status and text of an answer, without a browser that would tidy up the path first."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"))
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=/etc/passwd",
        "/file=/etc/passwd",
        "/gradio_api/file%3D/etc/passwd",
        "/gradio_api/info",
        "/docs",
        "/static/../../../../../../../../../../etc/passwd",
        "/static/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/assets/..%2f..%2f..%2f..%2f..%2f..%2f..%2f..%2f..%2fetc/passwd",
    ],
)
def test_no_file_is_served(address, path):
    status, text = ask(address, path)
    assert status in (400, 403, 404)
    assert "root:" not in text


def test_other_names_for_this_machine_are_refused(address):
    """A page elsewhere that points its own name at 127.0.0.1 must not reach the app."""
    assert ask(address, "/", Host="evil.example")[0] == 400
    assert ask(address, "/")[0] == 200
