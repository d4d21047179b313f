"""Make the sample pictures that ship in `src/aipo/images/samples` from scikit-image's free ones.

    python scripts/make_samples.py

The coffee is a whole photograph at half its size, the cat a part of one. The astronaut is brought to the geometry of
the face priors: of all similarity transforms (rotation, one scale, shift) the one that maps her five landmarks closest
to the average landmarks of an aligned face.
"""

from pathlib import Path

import numpy as np
from PIL import Image
from skimage import data
from skimage.transform import SimilarityTransform, warp

FOLDER = Path(__file__).parents[1] / "src" / "aipo" / "images" / "samples"
SIZE = 64
OVERSAMPLING = 8  # averaged away again, so that nothing aliases

# (x, y) in pixels from the top left corner of the picture: left eye, right eye, nose tip, mouth corners.
FACE = np.array([(18.5, 19.2), (45.3, 19.2), (31.7, 35.7), (21.2, 47.2), (43.0, 47.2)])
ASTRONAUT = np.array([(203.4, 101.1), (246.6, 103.5), (223.5, 127.0), (202.7, 139.2), (245.3, 140.9)])

# The cat's eyes are at the height of a face's eyes and centered as they are, but wider apart: at a face's
# scale the square would reach below the photograph.
CAT_LEFT_TOP, CAT_SIDE = (116, 47), 253


def resample(photo: np.ndarray, photo_to_face: SimilarityTransform) -> np.ndarray:
    """Photo (H, W, 3) uint8 -> (64, 64, 3) uint8, by averaging a finer cubic interpolation."""
    center = SimilarityTransform(translation=(0.5, 0.5))  # pixel indices -> positions, as used above
    fine_to_face = SimilarityTransform(scale=1 / OVERSAMPLING)
    fine_to_photo = center + fine_to_face + photo_to_face.inverse + center.inverse
    fine = warp(photo / 255.0, fine_to_photo, output_shape=(SIZE * OVERSAMPLING,) * 2, order=3)
    mean = fine.reshape(SIZE, OVERSAMPLING, SIZE, OVERSAMPLING, 3).mean(axis=(1, 3))
    return (mean.clip(0, 1) * 255).round().astype(np.uint8)


def main() -> None:
    scale = SIZE / CAT_SIDE
    cat_to_face = SimilarityTransform(scale=scale, translation=-scale * np.array(CAT_LEFT_TOP))
    astronaut_to_face = SimilarityTransform.from_estimate(ASTRONAUT, FACE)
    pictures = {
        "astronaut": resample(data.astronaut(), astronaut_to_face),
        "cat": resample(data.cat(), cat_to_face),
    }
    for name, picture in pictures.items():
        Image.fromarray(picture).save(FOLDER / f"{name}.png", optimize=True)
    coffee = Image.fromarray(data.coffee())
    half = coffee.resize((coffee.width // 2, coffee.height // 2), Image.Resampling.LANCZOS)
    half.save(FOLDER / "coffee.webp", lossless=True, quality=100, method=6)


if __name__ == "__main__":
    main()
