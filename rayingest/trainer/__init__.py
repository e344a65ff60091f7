"""Run in the training process: host memory for batches, copies to a device, and the `Loader`."""

from rayingest.trainer.device import resolve_device, resolve_pin
from rayingest.trainer.loader import Loader, PlanView
from rayingest.trainer.prefetch import SlotPool

__all__ = ["Loader", "PlanView", "SlotPool", "resolve_device", "resolve_pin"]
