"""Windows cut exactly where they can, what is put back lies where it was cut, and faces are found."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import aipo
from aipo.errors import InputError
from aipo.images.faces import detector
from aipo.images.faces.detector import find_faces
from aipo.images.windows import FACE, Window, place_window, similarity

# Where a person sees her eyes, nose and corners of the mouth in scikit-image's photograph.
ASTRONAUT = torch.tensor([(203.4, 101.1), (246.6, 103.5), (223.5, 127.0), (202.7, 139.2), (245.3, 140.9)]) - 0.5


def tensor(picture):
    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1).float() / 255


@pytest.fixture(scope="module")
def photo():
    return tensor(pytest.importorskip("skimage.data").astronaut())


def noise(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


def smooth(height, width):
    """A picture without detail, so that resampling it loses nothing."""
    y, x = torch.meshgrid(torch.linspace(0, 3, height), torch.linspace(0, 3, width), indexing="ij")
    return torch.stack([x.sin(), y.cos(), (x + y).sin()]) / 4 + 0.5


# --- windows ---


def test_a_crop_is_the_middle_untouched():
    x = noise(3, 101, 80)
    window = place_window(x, (64, 64), "crop")
    assert torch.equal(window.cut(x), x[:, 18:82, 8:72])
    assert not window.resampled
    assert window.noise_gain(x) == 1


@pytest.mark.parametrize("factor", [2, 3, 5])
def test_a_whole_number_of_pixels_is_averaged(factor):
    x = noise(3, 16 * factor, 20 * factor)
    window = place_window(x, (16, 16), "resize")
    expected = torch.nn.functional.avg_pool2d(x[:, :, 2 * factor : 18 * factor], factor)
    assert torch.allclose(window.cut(x), expected, atol=1e-5)
    assert window.noise_gain(x) == pytest.approx(1 / factor, rel=0.15)
    assert window.scale == pytest.approx(factor)


def test_the_noise_of_a_small_picture_is_not_averaged_away():
    x = noise(3, 40, 40)
    assert 0.6 < place_window(x, (64, 64), "resize").noise_gain(x) < 1.05


@settings(deadline=None, max_examples=30)
@given(
    angle=st.floats(-3, 3),
    scale=st.floats(0.1, 10),
    shift=st.tuples(st.floats(-100, 100), st.floats(-100, 100)),
)
def test_a_similarity_is_recovered_from_its_points(angle, scale, shift):
    matrix = scale * torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]).double()
    target = FACE @ matrix.T + torch.tensor(shift).double()
    found, moved = similarity(FACE, target)
    assert torch.allclose(found, matrix, atol=1e-9)
    assert torch.allclose(FACE @ found.T + moved, target, atol=1e-9)


def test_a_similarity_is_the_best_of_all():
    target = FACE * 50 + noise(5, 2)
    matrix, shift = similarity(FACE, target)

    def error(matrix, shift):
        return (FACE @ matrix.T + shift - target).square().sum()

    for step in (1e-3, -1e-3):
        spin = torch.tensor([[0.0, -step], [step, 0.0]]).double()
        assert error(matrix + spin @ matrix, shift) > error(matrix, shift)
        assert error(matrix * (1 + step), shift) > error(matrix, shift)
        assert error(matrix, shift + step) > error(matrix, shift)


def turned(scale, angle=0.3, shift=(60.0, 40.0), size=(32, 32)):
    matrix = scale * torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]).double()
    return Window(matrix, torch.tensor(shift).double(), size)


@pytest.mark.parametrize("scale", [0.6, 1.0, 2.7])
def test_cut_and_put_back_gives_the_same_picture(scale):
    x = smooth(150, 170)
    window = turned(scale)
    assert torch.allclose(window.paste(x, window.cut(x)), x, atol=5e-3)


@pytest.mark.parametrize("scale", [0.6, 1.0, 2.7])
def test_what_is_put_back_lies_where_it_was_cut(scale):
    x = torch.zeros(3, 150, 170)
    window = turned(scale)
    result = window.paste(x, torch.ones(3, 32, 32))
    middle = (window.matrix @ torch.tensor([15.5, 15.5]).double() + window.shift).round().long()
    assert result[:, middle[1], middle[0]].min() > 0.99
    # As much area as the window has, but for its soft edge.
    area = (32 * scale) ** 2
    assert 0.75 * area < result[0].sum() < area
    y, x = torch.meshgrid(torch.arange(150.0), torch.arange(170.0), indexing="ij")
    q = (torch.stack([x, y], dim=-1).double() - window.shift) @ torch.linalg.inv(window.matrix).T
    margin = 2.5 + 1 / scale  # cubic interpolation reaches two pixels far
    outside = ((q < -margin) | (q > 31 + margin)).any(-1)
    assert result[:, outside].abs().max() == 0


def test_a_window_knows_what_lies_beyond_the_picture():
    x = noise(3, 64, 64)
    window = Window(torch.eye(2).double(), torch.tensor([-10.5, 0.0]).double(), (64, 64))
    inside = window.inside(x)[0]
    assert not inside[:, :9].any()
    assert inside[2:-2, 14:].all()
    assert torch.allclose(window.cut(x)[:, 5:50, :8], x[:, 5:50, :1].expand(-1, -1, 8), atol=1e-4)


def test_what_cannot_be_fitted_is_refused():
    with pytest.raises(InputError, match=r"50x70 pixels .* too small"):
        place_window(torch.rand(3, 70, 50), (64, 64), "crop")
    with pytest.raises(InputError, match="no face"):
        place_window(torch.full((3, 100, 100), 0.5), (64, 64), "align")
    with pytest.raises(InputError, match="squeeze"):
        place_window(torch.rand(3, 70, 70), (64, 64), "squeeze")


# --- faces ---


@pytest.mark.parametrize("sigma", [0.0, 0.1, 0.3])
def test_the_points_of_a_face_are_where_a_person_sees_them(photo, sigma):
    noisy = photo + sigma * torch.randn(photo.shape, generator=torch.Generator().manual_seed(0))
    (face,) = find_faces(noisy)
    assert (face.points - ASTRONAUT).norm(dim=1).max() < 4
    x0, y0, x1, y1 = face.box
    assert x0 < 203 < 246 < x1
    assert y0 < 101 < 141 < y1


@pytest.mark.parametrize("scale", [0.4, 1.0, 2.5])
def test_the_astronaut_is_aligned_as_her_sample(photo, scale):
    size = round(512 * scale)
    picture = tensor(Image.fromarray((photo.permute(1, 2, 0) * 255).byte().numpy()).resize((size, size)))
    window = place_window(picture, (64, 64), "align")
    matrix, shift = similarity(FACE * 64 - 0.5, ASTRONAUT.double())
    corners = torch.tensor([(0.0, 0), (0, 63), (63, 0), (63, 63)]).double()
    expected, found = corners @ matrix.T + shift, (corners @ window.matrix.T + window.shift) / scale
    assert (found - expected).norm(dim=1).max() < 4  # pixels of the photograph, in which her face is 90 wide
    assert aipo.metrics.psnr(window.cut(picture).clamp(0, 1)[None], aipo.samples.load("astronaut")[None]).item() > 20


def test_a_tilted_face_is_set_upright(photo):
    picture = Image.fromarray((photo.permute(1, 2, 0) * 255).byte().numpy()).rotate(20, resample=Image.BICUBIC)
    window = place_window(tensor(picture), (64, 64), "align")
    angle = math.degrees(math.atan2(window.matrix[1, 0], window.matrix[0, 0]))
    assert angle == pytest.approx(-20, abs=6)  # y points down
    assert aipo.metrics.psnr(window.cut(tensor(picture)).clamp(0, 1)[None], aipo.samples.load("astronaut")[None]) > 18


def test_the_largest_of_several_faces_is_taken(photo):
    small = torch.nn.functional.avg_pool2d(photo, 2)
    both = torch.cat([torch.nn.functional.pad(small, (0, 0, 128, 128)), photo], dim=2)
    found = find_faces(both)
    assert len(found) == 2
    assert found[0].box[0] > 256 > found[1].box[2]
    assert "2 faces were found, the largest is restored" in place_window(both, (64, 64), "align").notes


def test_a_cat_has_no_face():
    cat = pytest.importorskip("skimage.data").cat()
    assert find_faces(tensor(cat)) == []


def test_the_detector_takes_no_other_weights(tmp_path):
    content = bytearray(detector.WEIGHTS.read_bytes())
    assert detector._checked_weights(detector.WEIGHTS) == content
    content[-1] ^= 1
    (tmp_path / "detector.safetensors").write_bytes(content)
    with pytest.raises(InputError, match="not the weights of the face detector"):
        detector._checked_weights(tmp_path / "detector.safetensors")
