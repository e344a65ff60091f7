"""Look at one loader about once a second: export its metrics, and log what keeps the loop waiting.

Owns the intervals and the last ten seconds of figures. It has no thread: the code that feeds the
loader calls `tick`.
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
from rayingest.plan.figures.metrics import Figures, Metrics, Snapshot, Span, no_span, take_snapshot

_LOOK_SECONDS = 1.0
_LOOK_SHARE = 0.01
"""The share of a CPU that looks may take. With many nodes a look is slow; then looks are rarer."""
_DIAGNOSIS_SECONDS = 10.0
"""A diagnosis covers this much time."""
_LOG_SECONDS = 60.0
SCALE_SECONDS = 5.0

_log = logging.getLogger("rayingest")


class LoaderWatch:
    """Watches one loader.

    Args:
        metrics: exports the figures; None exports nothing.
        clock: returns seconds.
        autoscale: receives what the loader did, every `SCALE_SECONDS`.
        cpu: returns the CPU seconds that the calling thread has used.
    """

    def __init__(
        self,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        autoscale: Callable[[Snapshot], None] | None = None,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._metrics, self._clock, self._autoscale, self._cpu = metrics, clock, autoscale, cpu
        self._figures: Callable[[], Figures] | None = None
        self._lock = threading.Lock()
        # The first look is older than `_DIAGNOSIS_SECONDS`, or the first of all.
        self._looks: deque[tuple[float, Figures]] = deque([(clock(), {})])
        self._trace: Span = no_span
        self._due = self._logged = clock()
        self._scaled: tuple[float, Figures] = (clock(), {})

    def attach(self, figures: Callable[[], Figures]) -> None:
        """Look at these figures of a loader from now on."""
        self._figures = figures

    def tick(self) -> None:
        """Look, unless the last look is less than 1 s old, or less than 100 times its own cost."""
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
        """Pass every span to `span` from now on."""
        self._trace = span

    def span(self, stage: str, seconds: float, who: str, position: tuple[int, int] | None) -> None:
        """Pass a span of finished work to the trace, if there is one."""
        self._trace(stage, seconds, who, position)

    def findings(self, figures: Figures) -> dict[str, Any]:
        """Return what follows from the last ten seconds up to these figures.

        `bottleneck`, `bottleneck_evidence`, `bottleneck_advice` and `bottleneck_settings`, as in
        `Diagnosis`; `p95_seconds`: by kind (wait, step, read, decode), the duration that 95 % of
        them did not exceed.
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
        """Record the last figures of the loader and release the metrics."""
        figures, self._figures = self._figures, None
        if self._metrics is None:
            return
        # The garbage collector may close the loader in the middle of a look: that look was the
        # last.
        if figures is not None and self._lock.acquire(blocking=False):
            try:
                with contextlib.suppress(IngestError):  # a forked process has no figures
                    self._metrics.record(figures())
            finally:
                self._lock.release()
        self._metrics.close()

    def _look(self, figures: Figures) -> None:
        now = self._clock()
        self._looks.append((now, figures))
        while now - self._looks[1][0] >= _DIAGNOSIS_SECONDS:
            self._looks.popleft()
        if self._metrics is not None:
            self._metrics.record(figures)
        if self._autoscale is not None and now - self._scaled[0] >= SCALE_SECONDS:
            self._autoscale(take_snapshot(self._scaled[1], figures, now - self._scaled[0]))
            self._scaled = now, figures
        if now - self._logged >= _LOG_SECONDS:
            self._logged = now
            found = diagnose(self._seen(figures))
            if found.share >= WAIT_SHARE:
                _log.warning("%s", found)

    def _seen(self, figures: Figures) -> Snapshot:
        then, before = self._looks[0]
        return take_snapshot(before, figures, self._clock() - then)
