"""The training process: host memory for batches, prefetching to a device, and the loader that a training loop sees."""

from rayingest.trainer.device import resolve_device, resolve_pin
from rayingest.trainer.loader import Loader, PlanView
from rayingest.trainer.slots import SlotPool

__all__ = ["Loader", "PlanView", "SlotPool", "resolve_device", "resolve_pin"]
