"""Looking at one loader about once a second: its metrics, what is short, and a line in the log while it waits too much.

Owns when, and what was seen of late. It has no thread: whoever feeds the loader calls `tick`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rayingest.errors import IngestError
from rayingest.monitor.diagnose import WAIT_SHARE, diagnose
from rayingest.plan.figures.histogram import quantile
from rayingest.plan.figures.metrics import Figures, Metrics, Snapshot, Span, between, no_span

_LOOK_SECONDS = 1.0
_LOOK_SHARE = 0.01
"""Of a CPU that looks may take: where one takes longer, with many nodes to tell of, the next comes later."""
_SEEN_SECONDS = 10.0
"""A conclusion is drawn from so many."""
_TELL_SECONDS = 60.0
SCALE_SECONDS = 5.0

_log = logging.getLogger("rayingest")


class LoaderWatch:
    """The watch of one loader; `metrics` is where its figures go, `rescale` who draws conclusions every few seconds.

    `clock` gives seconds, `cpu` those of the CPU that this thread has had.
    """

    def __init__(
        self,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        rescale: Callable[[Snapshot], None] | None = None,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._metrics, self._clock, self._rescale, self._cpu = metrics, clock, rescale, cpu
        self._figures: Callable[[], Figures] | None = None
        self._lock = threading.Lock()
        self._looks: deque[tuple[float, Figures]] = deque([(clock(), {})])
        self._traced: Span = no_span
        self._due = self._told = clock()
        self._scaled: tuple[float, Figures] = (clock(), {})

    def attach(self, figures: Callable[[], Figures]) -> None:
        """Look at these figures of a loader from now on."""
        self._figures = figures

    def tick(self) -> None:
        """Look, where the last look is a second ago, and took no more than a hundredth of the time since."""
        if self._clock() < self._due or not self._lock.acquire(blocking=False):
            return
        try:
            begun = self._cpu()
            if self._figures is not None:
                self._look(self._figures())
            self._due = self._clock() + max(_LOOK_SECONDS, (self._cpu() - begun) / _LOOK_SHARE)
        finally:
            self._lock.release()

    def trace(self, span: Span) -> None:
        """Tell this, from now on, what was done."""
        self._traced = span

    def span(self, stage: str, seconds: float, who: str, position: tuple[int, int] | None) -> None:
        """Something was done."""
        self._traced(stage, seconds, who, position)

    def findings(self, figures: Figures) -> dict[str, Any]:
        """`bottleneck`, why and what to do, and `p95_seconds`, in which 95 % of waits, steps, reads and decodes were
        done: of the last ten seconds up to these figures.
        """
        seen = self._seen(figures)
        found = diagnose(seen)
        return {
            "bottleneck": found.bottleneck,
            "bottleneck_evidence": found.evidence,
            "bottleneck_advice": found.advice,
            "bottleneck_settings": dict(found.settings),
            "p95_seconds": {
                name.removesuffix("_durations"): quantile(counts, 0.95)
                for name, counts in seen.durations.items()
            },
        }

    def close(self) -> None:
        """The loader is closed: its last figures are recorded."""
        figures, self._figures = self._figures, None
        if self._metrics is None:
            return
        # Garbage that is collected in the midst of a look may be the loader: then that look was the last.
        if figures is not None and self._lock.acquire(blocking=False):
            try:
                with contextlib.suppress(IngestError):  # a process that was forked has none
                    self._metrics.record(figures())
            finally:
                self._lock.release()
        self._metrics.close()

    def _look(self, figures: Figures) -> None:
        now = self._clock()
        self._looks.append((now, figures))
        while now - self._looks[1][0] >= _SEEN_SECONDS:
            self._looks.popleft()
        if self._metrics is not None:
            self._metrics.record(figures)
        if self._rescale is not None and now - self._scaled[0] >= SCALE_SECONDS:
            self._rescale(between(self._scaled[1], figures, now - self._scaled[0]))
            self._scaled = now, figures
        if now - self._told >= _TELL_SECONDS:
            self._told = now
            found = diagnose(self._seen(figures))
            if found.share >= WAIT_SHARE:
                _log.warning("%s", found)

    def _seen(self, figures: Figures) -> Snapshot:
        then, before = self._looks[0]
        return between(before, figures, self._clock() - then)
