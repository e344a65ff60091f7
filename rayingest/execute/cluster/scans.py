"""Scans on Ray: their parts done by tasks all over the cluster, once for all ranks of a job.

The first rank to ask makes a named actor that has it made; all others find it and wait for the same answer. Rank 0
shows the progress.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from rayingest.errors import IngestError, WorkerError
from rayingest.execute.cluster.connection import DEATHS
from rayingest.storage.index_cache import node_lock
from rayingest.storage.scan import Part, Progress, Scan, run_parts

_POLL_SECONDS = 0.2
_BURIAL_SECONDS = 30.0
_PARTS_A_TASK = 8
_TASKS_A_CPU = 4
_TRIES = 3
_CALLERS = 1024

T = TypeVar("T")


@ray.remote(num_cpus=0, max_retries=3)
def _do(parts: Sequence[Part]) -> list[Any]:
    return run_parts(
        parts, threads=1
    )  # in the main thread an interrupt of a user's function would be Ctrl-C


class _Scanor:
    """Makes one scan, on the first call of `build`; every call gets it."""

    def __init__(self, scan: Scan[Any]) -> None:
        self._scan = scan
        self._done = self._total = 0

    def progress(self) -> tuple[int, int]:
        """Parts done so far, of how many; 0 of 0 at first."""
        return self._done, self._total

    def build(self) -> Any:
        """What is kept, or made and then kept."""
        with node_lock(self._scan.key):
            value = self._scan.load()
            if value is None:
                value = self._make()
                self._scan.save(value)
        return value

    def _make(self) -> Any:
        parts = self._scan.parts()
        self._total = len(parts)
        if len(parts) <= _PARTS_A_TASK:  # done before another worker has started
            return self._scan.join([part() for part in parts])
        tasks = [parts[i : i + _PARTS_A_TASK] for i in range(0, len(parts), _PARTS_A_TASK)]
        results: list[list[Any]] = [[] for _ in tasks]
        running: dict[Any, int] = {}
        begun = 0
        # Tasks take no CPU, as far as Ray knows: it may have none to give.
        most = max(8, _TASKS_A_CPU * int(ray.cluster_resources().get("CPU", 0)))
        while begun < len(tasks) or running:
            while begun < len(tasks) and len(running) < most:
                ref = _do.remote(tasks[begun])
                running[ref] = begun
                begun += 1
            (ready, *_), _ = ray.wait(list(running), num_returns=1)
            place = running.pop(ready)
            results[place] = ray.get(ready)
            self._done += len(results[place])
        return self._scan.join([one for some in results for one in some])


def scan_on_cluster(scan: Scan[T], rank: int, progress: Progress) -> T:
    """What is kept, or else made by the cluster. Raises what a part raised."""
    for attempt in range(1, _TRIES + 1):
        kept = scan.load()  # again after a failure: whoever ended may have had it made
        if kept is not None:
            return kept
        scanor = _scanor(scan)
        try:
            return _ask(scanor, rank, progress)
        except RayError as error:
            cause = error.cause if isinstance(error, RayTaskError) else error
            if isinstance(cause, IngestError):
                raise cause from None
            if not isinstance(cause, DEATHS):  # its owner, another rank, may have ended
                raise
            _bury(scanor, scan)
            if attempt == _TRIES:
                raise WorkerError(
                    f"making the {scan.name} died {attempt} times; lastly: {cause}"
                ) from error
    raise AssertionError("unreachable")


def _name(scan: Scan[Any]) -> str:
    return f"rayingest:{scan.key}"


def _scanor(scan: Scan[Any]) -> Any:
    options = {
        "name": _name(scan),
        "get_if_exists": True,
        "num_cpus": 0,
        "max_concurrency": _CALLERS,
    }
    return ray.remote(_Scanor).options(**options).remote(scan)


def _ask(scanor: Any, rank: int, progress: Progress) -> Any:
    answer = scanor.build.remote()
    while True:
        try:
            return ray.get(answer, timeout=_POLL_SECONDS)
        except GetTimeoutError:
            if not rank:
                progress(*ray.get(scanor.progress.remote()))


def _bury(scanor: Any, scan: Scan[Any]) -> None:
    """Have the name free for another: a dead actor is found by it until the cluster knows of the death."""
    ray.kill(scanor)
    end = time.monotonic() + _BURIAL_SECONDS
    while time.monotonic() < end:
        try:
            found = ray.get_actor(_name(scan))
        except ValueError:
            return
        if found != scanor:  # another rank has made one
            return
        time.sleep(_POLL_SECONDS)
