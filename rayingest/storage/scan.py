"""A scan: what is made of a whole data set once, from parts that know nothing of each other, and kept.

Owns its execution in this process, by threads. The index is one, and so is what a filter says of every sample.
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
"""(parts done, all parts)"""


class Scan(Protocol[T]):
    """Picklable, without its results."""

    @property
    def name(self) -> str:
        """What is made, in a word or two."""

    @property
    def key(self) -> str:
        """The same in every process that needs the same."""

    @property
    def is_light(self) -> bool:
        """Whether a part is less work than sending it somewhere."""

    def load(self) -> T | None:
        """What is kept, if it still holds."""

    def save(self, value: T) -> None:
        """Keep it."""

    def parts(self) -> Sequence[Part]:
        """All parts, in order; small ones, that go together where calls are dear."""

    def join(self, results: Sequence[Any]) -> T:
        """The whole of the parts' results, in their order."""


def scan_locally(scan: Scan[T], progress: Progress, threads: int = 8) -> T:
    """What is kept, or else made now, while other processes of this node wait. Raises what a part raised."""
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
    """The parts' results. The error of the first part that has one, among those done, ends it; no other is begun."""
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
