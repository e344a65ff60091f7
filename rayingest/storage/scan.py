"""Define a scan: a result about a whole dataset, computed once from independent parts, and cached.

Owns its execution in this process, by threads. The index is a scan, and so are the answers of a
filter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Protocol, TypeVar

from rayingest.storage.index_cache import node_lock

T = TypeVar("T")
Part = Callable[[], Any]
"""A pure function of the data: it may run anywhere, and again."""
Progress = Callable[[int, int], None]
"""Report parts done, and all parts."""


class Scan(Protocol[T]):
    """A scan. Picklable, without its results."""

    @property
    def name(self) -> str:
        """What the scan builds, in a word or two."""

    @property
    def key(self) -> str:
        """A key that is equal in every process that needs the same result."""

    @property
    def is_light(self) -> bool:
        """Whether a part costs less than sending it to another process."""

    def load(self) -> T | None:
        """Return the cached result if it is up to date, else None."""

    def save(self, value: T) -> None:
        """Cache the result."""

    def parts(self) -> Sequence[Part]:
        """Return all parts, in order: small ones, sent together if calls are expensive."""

    def join(self, results: Sequence[Any]) -> T:
        """Return the result, given the results of all parts, in order."""


def scan_locally(scan: Scan[T], progress: Progress, threads: int = 8) -> T:
    """Return the cached result, or compute it now, while other processes of this node wait.

    Raises what a part raises.
    """
    with node_lock(scan.key):
        value = scan.load()
        if value is None:
            parts = scan.parts()
            progress(0, len(parts))
            value = scan.join(run_parts(parts, progress, threads))
            scan.save(value)
        return value


def run_parts(
    parts: Sequence[Part], progress: Progress | None = None, threads: int = 8
) -> list[Any]:
    """Return the parts' results.

    Raises the error of the first failed part among those that are done; no other part begins then.
    """
    with ThreadPoolExecutor(max(1, min(threads, len(parts))), "rayingest-scan") as pool:
        jobs = [pool.submit(part) for part in parts]
        try:
            for done, job in enumerate(as_completed(jobs), 1):
                if job.exception() is not None:
                    break
                if progress is not None:
                    progress(done, len(parts))
        finally:
            for job in jobs:
                job.cancel()
    failed = [job for job in jobs if not job.cancelled() and job.exception() is not None]
    return [job.result() for job in failed[:1] or jobs]
