"""From a folder of pictures to a trained flow with its card."""

from aipo.training.fit import Data, fit
from aipo.training.settings import Settings
from aipo.training.trainer import Trainer

__all__ = ["Data", "Settings", "Trainer", "fit"]
