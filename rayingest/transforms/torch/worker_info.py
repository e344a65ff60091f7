"""Make torch's `get_worker_info()` name the worker that runs a dataset's code.

Owns the number of this process among those that decode a stream. Sets a private variable of
`torch.utils.data`, as its DataLoader does, while the code of a dataset runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Worker(NamedTuple):
    """A process that decodes: its number, from 0, and how many there are for its rank."""

    number: int
    workers: int


_own = Worker(0, 1)


def set_own_worker(worker: Worker) -> None:
    """Number this process."""
    globals()["_own"] = worker


def own_worker() -> Worker:
    """Return this process's number, 0 of 1 without Ray."""
    return _own


@contextmanager
def worker_info(worker: Worker, seed: int, dataset: Any) -> Iterator[None]:
    """Let `get_worker_info()` return these values; imports torch."""
    from torch.utils.data._utils import worker as of_torch

    before = of_torch._worker_info
    of_torch._worker_info = of_torch.WorkerInfo(
        id=worker.number, num_workers=worker.workers, seed=seed, dataset=dataset
    )
    try:
        yield
    finally:
        of_torch._worker_info = before
