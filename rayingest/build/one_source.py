"""Build what a `Dataset` describes: scan its one source, then plan and stream its samples.

Owns the way from a description of one source to a rank's stream. Each step is the business of its
own module: `scan`, `planner` and `stream`.
"""

from __future__ import annotations

from dataclasses import dataclass

from rayingest.build.description import SourceDescription
from rayingest.build.planner import make_planner
from rayingest.build.rank_plan import RankPlan
from rayingest.build.ranks import Ranks
from rayingest.build.scan import ScanResult, scan_source
from rayingest.build.stream import make_stream
from rayingest.execute.stream import Stream
from rayingest.plan.order.planner import Planner
from rayingest.util.slow import log_if_slow


@dataclass(frozen=True)
class OneSource(SourceDescription):
    """Data from one source that can be read."""

    def scan(self, rank: int, on_ray: bool, shown: bool = False) -> ScanResult:
        """Run the scans that the description needs, or load their cached results.

        `on_ray`: scan on the connected cluster. `shown`: always show progress.
        """
        with log_if_slow("listing the shards"):
            cache = self.source.index_cache()
        return scan_source(self, cache, rank, on_ray, shown)

    def build_planner(
        self, scan_result: ScanResult, rank: int, world_size: int, uneven: bool
    ) -> Planner:
        """Build one rank's planner for scanned data. Raises ConfigError."""
        return make_planner(self, scan_result, rank, world_size, uneven)

    def build_stream(
        self, ranks: Ranks, *, uneven: bool, on_ray: bool, skip: bool, image_backend: str | None
    ) -> tuple[Stream, RankPlan]:
        scan_result = self.scan(ranks.rank, on_ray)
        planner = self.build_planner(scan_result, ranks.rank, ranks.world_size, uneven)
        return make_stream(scan_result, planner, self.work, skip=skip, image_backend=image_backend)
