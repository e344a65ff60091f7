"""Run scans on Ray: tasks all over the cluster do the parts, once for all ranks of a job.

The first rank to ask starts a named actor that runs the scan. All other ranks find the actor and
wait for the same result. Rank 0 shows the progress.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from rayingest.errors import IngestError, WorkerError
from rayingest.execute.cluster.connection import ACTOR_ERRORS
from rayingest.storage.scan import Part, Progress, Scan, node_lock, run_parts

_POLL_SECONDS = 0.2
_NAME_SECONDS = 30.0
_PARTS_A_TASK = 8
_TASKS_A_CPU = 4
_ATTEMPTS = 3
_CALLERS = 1024

T = TypeVar("T")


@ray.remote(num_cpus=0, max_retries=3)
def _do(parts: Sequence[Part]) -> list[Any]:
    # In the main thread: there, Ctrl-C interrupts a user's function.
    return run_parts(parts, threads=1)


class _ScanActor:
    """Runs one scan, on the first call of `run`; every call returns its result."""

    def __init__(self, scan: Scan[Any]) -> None:
        self._scan = scan
        self._done = self._total = 0

    def progress(self) -> tuple[int, int]:
        """Return how many parts are done, and how many there are; (0, 0) before the scan begins."""
        return self._done, self._total

    def run(self) -> Any:
        """Return the cached result, or run the scan and cache its result."""
        with node_lock(self._scan.key):
            value = self._scan.load()
            if value is None:
                value = self._scan_parts()
                self._scan.save(value)
        return value

    def _scan_parts(self) -> Any:
        parts = self._scan.parts()
        self._total = len(parts)
        if len(parts) <= _PARTS_A_TASK:  # faster than starting another worker
            return self._scan.join([part() for part in parts])
        tasks = [parts[i : i + _PARTS_A_TASK] for i in range(0, len(parts), _PARTS_A_TASK)]
        results: list[list[Any]] = [[] for _ in tasks]
        running: dict[Any, int] = {}
        begun = 0
        # The tasks request no CPU: the cluster may have none free. So this limits their number.
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
    """Return the cached result, or run the scan on the cluster.

    Raises:
        IngestError: a part raised it.
        WorkerError: the scan's actor died several times.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        cached = scan.load()  # again after a failure: the dead actor may have cached its result
        if cached is not None:
            return cached
        actor = _find_or_start(scan)
        try:
            return _wait(actor, rank, progress)
        except RayError as error:
            cause = error.cause if isinstance(error, RayTaskError) else error
            if isinstance(cause, IngestError):
                raise cause from None
            if not isinstance(cause, ACTOR_ERRORS):  # these also come when the actor's owner ends
                raise
            _free_name(actor, scan)
            if attempt == _ATTEMPTS:
                raise WorkerError(
                    f"the {scan.name} failed: its actor died {attempt} times; "
                    f"the last error: {cause}"
                ) from error
    raise AssertionError("unreachable")


def _name(scan: Scan[Any]) -> str:
    return f"rayingest:{scan.key}"


def _find_or_start(scan: Scan[Any]) -> Any:
    options = {
        "name": _name(scan),
        "get_if_exists": True,
        "num_cpus": 0,
        "max_concurrency": _CALLERS,
    }
    return ray.remote(_ScanActor).options(**options).remote(scan)


def _wait(actor: Any, rank: int, progress: Progress) -> Any:
    result = actor.run.remote()
    while True:
        try:
            return ray.get(result, timeout=_POLL_SECONDS)
        except GetTimeoutError:
            if not rank:
                progress(*ray.get(actor.progress.remote()))


def _free_name(actor: Any, scan: Scan[Any]) -> None:
    """Wait until the name is free: it finds a dead actor until the cluster notices its death."""
    ray.kill(actor)
    end = time.monotonic() + _NAME_SECONDS
    while time.monotonic() < end:
        try:
            found = ray.get_actor(_name(scan))
        except ValueError:
            return
        if found != actor:  # another rank has started one
            return
        time.sleep(_POLL_SECONDS)
