"""Write src/aipo/images/faces/detector.safetensors from the weights of the package mtcnn.

Done once, after `pip install mtcnn joblib lz4`. The package keeps its weights as compressed pickles, which the product
itself must not read.
"""

import importlib.util
from pathlib import Path

import joblib
import torch
from safetensors.torch import save_file

folder = Path(importlib.util.find_spec("mtcnn").submodule_search_locations[0]) / "assets" / "weights"
tensors = {
    f"{name}.{i:02}": torch.from_numpy(array).contiguous()
    for name in ("pnet", "rnet", "onet")
    for i, array in enumerate(joblib.load(folder / f"{name}.lz4"))
}
about = {"source": "the PyPI package mtcnn 1.0.0, by Iván de Paz Centeno", "license": "MIT, see LICENSE-MTCNN.txt"}
save_file(tensors, Path(__file__).parents[1] / "src/aipo/images/faces/detector.safetensors", about)
