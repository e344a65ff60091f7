"""Run scans on Ray: tasks all over the cluster do the parts, once for all ranks of a job.

The first rank to ask starts a named actor that runs the scan. All other ranks find the actor. The
result is one object in the store, which Ray copies to each node once, from any node that has it.
Rank 0 shows the progress. The actor ends shortly after all ranks have the result.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayError, RayTaskError

from rayingest.errors import IngestError, WorkerError
from rayingest.execute.cluster.connection import ACTOR_ERRORS
from rayingest.execute.cluster.coordinator import NAMESPACE, job_name
from rayingest.execute.cluster.node_info import await_rays_end
from rayingest.storage.scan import Part, Progress, Scan, node_lock, run_parts

_POLL_SECONDS = 0.2
_NAME_SECONDS = 30.0
_PARTS_A_TASK = 8
_TASKS_A_CPU = 4
_ATTEMPTS = 3
_RANK_0_SECONDS = 1.0
_CALLERS = 10_000
"""Calls that an actor takes at a time. They wait on its event loop, and need no threads."""
_LINGER_SECONDS = 20.0
"""An actor that some rank has not asked ends after this time without a call."""
_LINGER_SERVED_SECONDS = 5.0
"""The same if all ranks have asked; several processes can be one rank."""

_FAILURES = (*ACTOR_ERRORS, ObjectLostError)

T = TypeVar("T")
R = TypeVar("R")
OpenScan = Callable[[], Scan[T]]

_asked: defaultdict[tuple[str, str, int], itertools.count[int]] = defaultdict(itertools.count)
"""By job, key and rank: how often this process has asked. Each time is a new scan."""
_started: deque[Any] = deque(maxlen=32)
"""Handles of actors: an actor lives as long as the handle of the process that started it."""


@ray.remote(num_cpus=0, max_retries=3)
def _do(parts: Sequence[Part]) -> list[Any]:
    # In the main thread: there, Ctrl-C interrupts a user's function.
    return run_parts(parts, threads=1)


class _ScanActor:
    """Runs one scan; every call of `result` returns a reference to the same result."""

    def __init__(self, open_scan: OpenScan[Any], world_size: int) -> None:
        await_rays_end()
        self._open_scan, self._world_size = open_scan, world_size
        self._done = self._total = 0
        self._running: asyncio.Future[Any] | None = None
        self._served: set[int] = set()
        self._called = time.monotonic()
        self._is_ending = False

    async def progress(self) -> tuple[int, int]:
        """Return how many parts are done, and how many there are; (0, 0) before the scan begins."""
        return self._done, self._total

    async def result(self, rank: int) -> list[Any]:
        """Return [reference to (scan, result)]: the cached result, or that of the scan.

        A call after a failure runs the scan again.
        """
        if self._running is None:
            self._running = asyncio.ensure_future(asyncio.to_thread(self._run))
        running = self._running
        try:
            ref = await asyncio.shield(running)
        except Exception:
            if self._running is running:
                self._running = None
            raise
        self._served.add(rank)
        self._called = time.monotonic()
        return [ref]

    async def end_when_served(self) -> None:
        """End this actor when no rank needs it any longer; only the first call does."""
        if self._is_ending:
            return
        self._is_ending = True
        while True:
            await asyncio.sleep(1.0)
            idle = time.monotonic() - self._called
            is_served = len(self._served) >= self._world_size
            is_running = self._running is not None and not self._running.done()
            if not is_running and idle > (_LINGER_SERVED_SECONDS if is_served else _LINGER_SECONDS):
                ray.actor.exit_actor()

    def _run(self) -> Any:
        scan = self._open_scan()
        with node_lock(scan.key):
            value = scan.load()
            if value is None:
                value = self._scan_parts(scan)
                scan.save(value)
        return ray.put((scan, value))

    def _scan_parts(self, scan: Scan[Any]) -> Any:
        parts = scan.parts()
        self._done, self._total = 0, len(parts)
        if len(parts) <= _PARTS_A_TASK or scan.is_light:  # faster than starting another worker
            return scan.join([part() for part in parts])
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
        return scan.join([one for some in results for one in some])


def scan_on_cluster(scan: Scan[T], progress: Progress) -> T:
    """Return the cached result, or run the scan on the cluster for this process alone.

    Raises:
        IngestError: a part raised it.
        WorkerError: the scan's actor died several times.
    """

    def ask() -> T:
        cached = scan.load()  # again after a failure: the dead actor may have cached its result
        if cached is not None:
            return cached
        actor = ray.remote(_ScanActor).options(num_cpus=0).remote(lambda: scan, 1)
        value: T = _wait(actor, 0, progress)[1]
        return value

    return _try(scan.name, ask)


def share_scan(
    open_scan: OpenScan[T], name: str, key: str, rank: int, world_size: int, progress: Progress
) -> tuple[Scan[T], T]:
    """Return a scan and its result, which all ranks of a job have in common.

    `open_scan` runs once for all ranks, in the process that runs the scan. `key` is equal in every
    rank, and unlike that of any other scan of the job. Raises as `scan_on_cluster` does.
    """
    job = job_name(world_size)
    number = next(_asked[job, key, rank])
    digest = hashlib.blake2b(f"{key} {number}".encode(), digest_size=16).hexdigest()
    options = {"name": f"rayingest:scan:{job}:{digest}", "namespace": NAMESPACE}

    def ask() -> tuple[Scan[T], T]:
        if rank:
            _wait_for_name(**options)
        actor = (
            ray.remote(_ScanActor)
            .options(num_cpus=0, max_concurrency=_CALLERS, get_if_exists=True, **options)
            .remote(open_scan, world_size)
        )
        _started.append(actor)
        actor.end_when_served.remote()
        try:
            return _wait(actor, rank, progress)
        except _FAILURES:
            _free_name(actor, **options)
            raise

    return _try(name, ask)


def _try(name: str, ask: Callable[[], R]) -> R:
    """Return the result of `ask`; ask again if the scan's actor dies."""
    for attempt in itertools.count(1):
        try:
            return ask()
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, IngestError):
                raise cause from None
            if not isinstance(cause, _FAILURES):
                raise
            failure: RayError = cause
        except _FAILURES as error:  # these also come when the actor's owner ends
            failure = error
        if attempt == _ATTEMPTS:
            raise WorkerError(
                f"the {name} failed: its actor died {attempt} times; the last error: {failure}"
            ) from failure
    raise AssertionError("unreachable")


def _wait(actor: Any, rank: int, progress: Progress) -> Any:
    result = actor.result.remote(rank)
    while True:
        try:
            (ref,) = ray.get(result, timeout=_POLL_SECONDS)
        except GetTimeoutError:
            if not rank:
                progress(*ray.get(actor.progress.remote()))
        else:
            return ray.get(ref)


def _wait_for_name(name: str, namespace: str) -> None:
    """Let rank 0 start the actor: the scan that all other ranks would send along can be large."""
    end = time.monotonic() + _RANK_0_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(ValueError):
            ray.get_actor(name, namespace)
            return
        time.sleep(_POLL_SECONDS)


def _free_name(actor: Any, name: str, namespace: str) -> None:
    """Wait until the name is free: it finds a dead actor until the cluster notices its death."""
    ray.kill(actor)
    end = time.monotonic() + _NAME_SECONDS
    while time.monotonic() < end:
        try:
            found = ray.get_actor(name, namespace)
        except ValueError:
            return
        if found != actor:  # another rank has started one
            return
        time.sleep(_POLL_SECONDS)
