"""What NCCL does: paths, search, tuner."""

from blinksim.nccl.prediction import Prediction, predict

__all__ = ["Prediction", "predict"]
