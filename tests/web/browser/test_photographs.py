"""Whole photographs in a real browser: four megapixels, a phone, two tabs, and no mouse at all."""

import io

import numpy as np
import pytest
from PIL import Image

from conftest import ARTIFACTS


def picture(height, width):
    rows, columns = np.mgrid[:height, :width]
    waves = np.sin(rows / 30) + np.sin(columns / 25)
    return np.stack([60 + 30 * (waves + 2), 140 + 25 * waves, 190 - 30 * waves], -1)


def noisy(array, sigma=25):
    noise = np.random.default_rng(0).normal(0, sigma, array.shape)
    return np.clip(np.round(array + noise), 0, 255).astype(np.uint8)


def save(folder, name, array, **options):
    Image.fromarray(array.astype(np.uint8)).save(folder / name, **options)
    return folder / name


def snap(page, name):
    page.wait_for_timeout(150)
    page.screenshot(path=ARTIFACTS / f"photo-{name}.png", full_page=True)


def wait_for(page, *statuses):
    page.wait_for_selector(", ".join(f'#outcome[data-status="{status}"]' for status in statuses))
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def choose(page, file):
    page.set_input_files("#file", file)
    wait_for(page, "ready")


def say_level(page, level):
    page.uncheck("#automatic")
    move(page, "#sigma", level)


def move(page, selector, value):
    page.eval_on_selector(
        selector,
        "(input, value) => { input.value = value; input.dispatchEvent(new Event('input', { bubbles: true })); }",
        value,
    )
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def seen(page):
    """What the stage shows, (H, W, 3)."""
    shot = page.locator("#stage canvas").screenshot()
    return np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")).astype(np.float32)


def downloaded(page):
    with page.expect_download() as waiting:
        page.click("#download")
    return waiting.value.suggested_filename, waiting.value.path().read_bytes()


def error(content, truth):
    pixels = np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(float)
    return np.square(pixels - truth).mean()


def test_four_megapixels(visit, tmp_path):
    truth = picture(1600, 2500)
    exif = Image.Exif()
    exif[0x010F] = "A camera"
    file = save(tmp_path, "view.jpeg", noisy(truth), quality=95, exif=exif)
    page = visit(faces=False)
    snap(page, "1-opened")
    assert page.is_disabled("#restore")
    choose(page, file)
    snap(page, "2-chosen")
    assert "2500x1600 pixels, JPEG" in page.inner_text("#about")
    say_level(page, 0.1)
    # Whatever is painted on the way leaves its mark.
    page.evaluate("""() => {
      window.shares = new Set();
      const bar = document.querySelector("progress");
      const look = () => { if (bar.hasAttribute("value")) shares.add(bar.value); requestAnimationFrame(look); };
      look();
    }""")
    page.click("#restore")
    page.wait_for_selector("#outcome[data-first]")
    snap(page, "3-first-look")
    page.wait_for_function("shares.size > 2")
    snap(page, "4-running")
    assert page.is_visible("#stop")
    wait_for(page, "done")
    snap(page, "5-done")
    assert page.evaluate("shares.size") >= 4

    # Left of the divider the picture before, right of it the restoration: less noise.
    def roughness(part):
        return np.abs(np.diff(part, axis=0)).mean()

    page.click("#full")
    assert page.inner_text("#zoom") == "100%"
    whole = seen(page)
    middle = whole.shape[1] // 2
    assert roughness(whole[:, : middle - 30]) > 1.5 * roughness(whole[:, middle + 30 :])
    snap(page, "6-full-size")
    move(page, "#wipe", 0)
    after = seen(page)
    move(page, "#wipe", 1000)
    before = seen(page)
    assert roughness(before) > 1.5 * roughness(after)
    move(page, "#wipe", 0)
    move(page, "#strength", 0)
    assert np.abs(seen(page) - before).mean() < 2  # but for what is written on it
    move(page, "#strength", 50)
    half = seen(page)
    assert np.abs(half - (before + after) / 2).mean() < 2

    name, mixed = downloaded(page)
    assert name == "view.restored.jpeg"
    move(page, "#strength", 100)
    name, content = downloaded(page)
    kept = Image.open(io.BytesIO(content))
    assert (kept.format, kept.size, kept.getexif()[0x010F]) == ("JPEG", (2500, 1600), "A camera")
    assert error(content, truth) < error(mixed, truth) < error(file.read_bytes(), truth)
    assert any("as you said" in fact for fact in page.locator("#facts li").all_inner_texts())


def test_paint_and_fill(visit, tmp_path):
    truth = picture(400, 600)
    damaged = truth.copy()
    damaged[190:210, 100:500] = 0  # a scratch
    page = visit(faces=False, dark=True)
    choose(page, save(tmp_path, "scratched.png", damaged))
    page.click("text=Missing parts")
    snap(page, "7-to-paint")
    page.click("#restore")
    wait_for(page, "failed")
    assert "Nothing is painted yet" in page.inner_text("#status")
    page.click("#full")
    move(page, "#brush", 30)
    box = page.locator("#stage canvas").bounding_box()
    across, down = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def stroke(y, left, right):
        page.mouse.move(across + left, down + y)
        page.mouse.down()
        page.mouse.move(across + right, down + y, steps=6)
        page.mouse.up()

    stroke(0, -205, 205)
    stroke(-120, -50, 50)
    snap(page, "8-painted")
    page.click("#undo")
    page.click("#restore")
    wait_for(page, "done")
    snap(page, "9-filled")
    name, content = downloaded(page)
    assert name == "scratched.restored.png"
    after = np.asarray(Image.open(io.BytesIO(content))).astype(float)
    changed = np.abs(after - damaged.astype(np.uint8)).max(-1) > 0
    rows = changed.any(1).nonzero()[0]
    assert 183 <= rows.min() <= 187  # a brush of 30 pixels along the middle, and the other stroke is undone
    assert 213 <= rows.max() <= 217
    assert np.abs(after - truth)[190:210, 100:500].mean() < np.abs(damaged - truth)[190:210, 100:500].mean() / 5
    assert not page.is_visible("#strength")


def test_a_question_and_a_refusal(visit, tmp_path):
    page = visit(faces=False)
    (tmp_path / "bad.png").write_bytes(b"not a picture")
    page.set_input_files("#file", tmp_path / "bad.png")
    page.wait_for_selector("#about.refused")
    assert "This is not a picture" in page.inner_text("#about")
    snap(page, "10-refused")
    choose(page, save(tmp_path, "plain.png", picture(150, 200)))
    page.click("text=One color per pixel")
    page.click("#restore")
    wait_for(page, "failed")
    assert "is in color" in page.inner_text("#status")
    page.click("text=Missing parts")
    move(page, "#brush", 120)
    box = page.locator("#stage canvas").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.click("#restore")
    wait_for(page, "failed")
    assert "made up" in page.inner_text("#status")
    snap(page, "11-question")
    page.check("#anyway")
    page.click("#restore")
    wait_for(page, "done")


def test_stop(visit, tmp_path):
    page = visit(faces=False)
    choose(page, save(tmp_path, "view.png", noisy(picture(700, 900))))
    page.click("text=Too few pixels")
    page.click("#restore")
    page.wait_for_selector("#outcome[data-first]")
    page.click("#stop")
    wait_for(page, "stopped")
    snap(page, "12-stopped")
    assert "There is no file" in page.inner_text("#status")
    assert not page.is_visible("#download")
    page.click("text=Noise")
    say_level(page, 0.1)
    page.click("#restore")
    wait_for(page, "done")


def test_two_tabs(visit, tmp_path):
    """Of one browser, at the same time: each gets its own."""
    first = visit(faces=False)
    second = visit.another_tab(first)
    pages = {first: (300, 500), second: (400, 250)}
    for page, size in pages.items():
        choose(page, save(tmp_path, f"{size[0]}.png", noisy(picture(*size))))
    for page in pages:
        page.click("#restore")
    for page, (height, width) in pages.items():
        wait_for(page, "done")
        name, content = downloaded(page)
        assert name == f"{height}.restored.png"
        assert Image.open(io.BytesIO(content)).size == (width, height)
        truth = picture(height, width)
        assert error(content, truth) < np.square(noisy(truth) - truth).mean() / 2


def test_keyboard_only(visit):
    """At 375 pixels: choose, paint, undo, restore, compare and download without a mouse."""
    page = visit(width=375, height=740, faces=False)
    press = page.keyboard.press

    def tab_to(selector):
        for _ in range(40):
            press("Tab")
            if page.evaluate("(s) => document.activeElement?.matches(s)", selector):
                return
        raise AssertionError(f"Tab never came to {selector}")

    tab_to("#sample")
    press("Enter")
    wait_for(page, "ready")
    tab_to("[name=task]")
    press("ArrowRight")
    assert page.is_checked("[value=inpaint]")
    tab_to("#stage canvas")
    press("1")
    press("Space")
    for _ in range(3):
        press("ArrowRight")
    press("Space")
    for _ in range(4):
        press("ArrowUp")
    press("Space")
    press("ArrowRight")
    press("Space")
    page.wait_for_timeout(100)
    snap(page, "13-phone-painted")
    both = seen(page)
    press("Control+z")
    page.wait_for_timeout(100)
    assert (seen(page) != both).any()
    press("Shift+Tab")
    while not page.evaluate("document.activeElement.matches('#restore')"):
        press("Shift+Tab")
    press("Enter")
    wait_for(page, "done")
    tab_to("#wipe")
    for _ in range(5):
        press("ArrowLeft")
    assert page.input_value("#wipe") == "495"
    tab_to("#download")
    with page.expect_download() as waiting:
        press("Enter")
    assert waiting.value.suggested_filename == "coffee.restored.png"
    snap(page, "14-phone-filled")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375


@pytest.mark.parametrize("task", ["Noise", "Blur", "Too few pixels"])
def test_on_a_phone(visit, task):
    page = visit(width=375, height=740, faces=False, touch=True, dark=task == "Blur")
    page.tap("#sample")
    wait_for(page, "ready")
    page.tap(f"text={task}")
    snap(page, f"15-phone-{task.split()[-1].lower()}")
    page.tap("#restore")
    wait_for(page, "done")
    snap(page, f"16-phone-{task.split()[-1].lower()}-done")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375


def test_two_fingers_zoom_and_one_paints(visit):
    page = visit(width=375, height=740, faces=False, touch=True)
    page.tap("#sample")
    wait_for(page, "ready")
    page.tap("text=Missing parts")
    page.locator("#stage").scroll_into_view_if_needed()
    box = page.locator("#stage canvas").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    device = page.context.new_cdp_session(page)

    def touch(kind, *fingers):
        points = [{"x": x + dx, "y": y + dy, "id": i} for i, (dx, dy) in enumerate(fingers)]
        device.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    scale = page.inner_text("#zoom")
    touch("touchStart", (-20, 0))
    touch("touchStart", (-20, 0), (20, 0))
    for far in (40, 70, 100):
        touch("touchMove", (-far, 0), (far, 0))
    touch("touchEnd")
    page.wait_for_timeout(100)
    assert int(page.inner_text("#zoom")[:-1]) > 2 * int(scale[:-1])
    clean = seen(page)
    touch("touchStart", (0, 0))
    touch("touchMove", (30, 10))
    touch("touchMove", (60, 20))
    touch("touchEnd")
    page.wait_for_timeout(100)
    assert (np.abs(seen(page) - clean).max(-1) > 30).mean() > 0.005
    page.tap("#undo")
    page.wait_for_timeout(100)
    assert np.abs(seen(page) - clean).max() < 3
