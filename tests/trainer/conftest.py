"""Loaders over a fake source, on each path that batches take."""

import pytest
import torch

import rayingest.trainer.loader as loader_module
from rayingest.trainer import Loader, SlotPool
from tests.trainer.fake_source import STEPS, Plan, Source
from tests.trainer.recorded_backend import RecordedBackend


@pytest.fixture(params=["cpu", "cpu, slots", "device"])
def make(request, monkeypatch):
    """Make a loader and its source: on the CPU, on the CPU with slots, or on a recorded device."""

    def build(steps=STEPS, failing=(), **options):
        pool = None if request.param == "cpu" else SlotPool()
        source = Source(steps, pool, failing)
        if request.param == "device":
            monkeypatch.setattr(
                loader_module, "resolve_device", lambda device: torch.device("cuda", 0)
            )
            monkeypatch.setattr(
                loader_module, "CudaBackend", lambda device: RecordedBackend(eager=True)
            )
            options["prefetch"] = 2
        return Loader(source, Plan(steps), slots=pool, **options), source

    build.runs_ahead = request.param == "device"
    return build
