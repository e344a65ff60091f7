"""Measure what the data costs, as the difference between runs that leave out a part of the work.

Owns the runs: the data where it is (cold), fresh copies on a local disk (cached), and one batch
that is handed out again and again (synthetic), which needs neither storage nor decoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from rayingest.api.data import Data
from rayingest.execute.cluster.pool import Pool
from rayingest.monitor.trace import Trace
from rayingest.plan.protocols import Batch
from rayingest.tools.probe.local_copies import copy_first_shards, without_cache
from rayingest.tools.probe.probe import (
    Measured,
    NotMeasured,
    Point,
    Result,
    Trial,
    attempt,
    measure,
    run_loader,
    wait_for_decoders,
)
from rayingest.trainer.loader import Loader
from rayingest.trainer.prefetch import SlotPool

RUNS = ("cold", "cached", "synthetic")
_COSTS = ("storage", "decoding", "the rest")
"""What each run does more than the next one."""
_STEPS = 1 << 30


def run_ablation(
    dataset: Data[Any], point: Point, trial: Trial, trace: Trace | None = None
) -> Iterator[Result]:
    """Yield the results of the `RUNS` at one point; trace the cold run."""
    with Pool(workers=point.workers, start_timeout=trial.timeout) as pool:
        lack = wait_for_decoders(pool, trial.timeout)

        def cold() -> Result:
            return measure(without_cache(dataset), point, trial, pool, trace)

        def cached() -> Result:
            with copy_first_shards(dataset) as local:
                return measure(local, point, trial, pool)

        for run in (cold, cached):
            yield NotMeasured(point, lack) if lack else attempt(point, run)
    yield attempt(point, lambda: _synthetic(dataset, point, trial))


def split(runs: Sequence[Result]) -> dict[str, float]:
    """Return seconds per batch of storage, decoding and the rest (copies, the step); none negative.

    Two costs are one entry if the run that separates them was not measured. Empty without a run.
    """
    times = [
        (place, one.data_seconds + one.step_seconds)
        for place, one in enumerate(runs)
        if isinstance(one, Measured)
    ]
    behind = [*times[1:], (len(_COSTS), 0.0)]
    return {
        " and ".join(_COSTS[place:end]): max(0.0, took - less)
        for (place, took), (end, less) in zip(times, behind, strict=False)
    }


def _synthetic(dataset: Data[Any], point: Point, trial: Trial) -> Measured:
    """Measure a loader that hands out one batch of the data again and again."""
    options = {
        name: value
        for name, value in trial.options.items()
        if name not in {"epochs", "device", "after_copy"}
    }
    with point.batched(dataset).loader(
        **{**options, "workers": 0, "device": "cpu", "pin_memory": None}
    ) as loader:
        values = next(iter(loader))
    columns = {
        name: value.numpy() if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
    }
    again = {
        name: trial.options[name] for name in ("device", "after_copy") if name in trial.options
    }
    slots = SlotPool(bool(point.pin_memory))
    with Loader(
        _Again(Batch(0, 0, columns)), _View(), prefetch=point.prefetch, slots=slots, **again
    ) as loader:
        return run_loader(loader, point, trial, None)


class _Again:
    """A source that returns the same batch forever."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._at = (0, 0)

    def start(self, epoch: int, step: int) -> None:
        self._at = (epoch, step)

    def get(self) -> Batch:
        epoch, step = self._at
        self._at = (epoch, step + 1) if step + 1 < _STEPS else (epoch + 1, 0)
        return replace(self._batch, epoch=epoch, step=step)

    def ready(self) -> bool:
        return True

    def stats(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


class _View:
    """An endless plan of one rank."""

    rank, world_size = 0, 1

    def steps_in(self, epoch: int) -> int:
        return _STEPS

    def reached(self, epoch: int, step: int) -> None:
        pass

    def state(self, epoch: int, step: int) -> dict[str, Any]:
        return {"epoch": epoch, "step": step}

    def position(self, state: dict[str, Any]) -> tuple[int, int]:
        return state["epoch"], state["step"]
