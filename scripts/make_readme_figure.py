"""Draw docs/results.png from the pictures that `aipo demo` writes.

python scripts/make_readme_figure.py [DEMO_FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from aipo.images import read_image
from aipo.images.metrics import psnr

TASKS = {"denoise": "denoising", "inpaint": "inpainting", "sensing": "compressed sensing"}
IMAGES = ("astronaut", "drawn-1", "cat")
KINDS = {"truth": "truth", "naive": "measured", "restored": "AIPO"}
OUT = Path(__file__).parents[1] / "docs" / "results.png"


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "aipo-demo")
    fig, axes = plt.subplots(3, 9, figsize=(13, 4.9), gridspec_kw={"wspace": 0.06, "hspace": 0.22})
    for block, (task, title) in enumerate(TASKS.items()):
        for row, name in enumerate(IMAGES):
            truth = read_image(folder / f"{task}.{name}.truth.png")
            for column, (kind, label) in enumerate(KINDS.items()):
                ax = axes[row, 3 * block + column]
                image = read_image(folder / f"{task}.{name}.{kind}.png")
                ax.imshow(image.permute(1, 2, 0), interpolation="nearest")
                ax.set(xticks=[], yticks=[])
                ax.spines[:].set_visible(False)
                if kind != "truth":
                    ax.set_xlabel(f"{psnr(image[None], truth[None]).item():.1f} dB", fontsize=9, labelpad=2)
                if row == 0:
                    ax.set_title(f"{title}\n{label}" if column == 1 else label, fontsize=10)
                # A little room between the tasks.
                box = ax.get_position()
                ax.set_position((box.x0 + 0.012 * (block - 1), box.y0, box.width, box.height))
    fig.savefig(OUT, dpi=110, bbox_inches="tight", pad_inches=0.08)
    print(f"wrote {OUT}")


if __name__ == "__main__":
    main()
