"""From a rank's planner to its stream, and to the part of the plan that its loader uses.

Owns which options of a loader change the stream. How the stream is run is the loader's business.
"""

from __future__ import annotations

from functools import partial

from rayingest.build.rank_plan import RankPlan
from rayingest.build.scan import ScanResult
from rayingest.build.summary import describe
from rayingest.errors import ConfigError
from rayingest.execute.stream import ManifestStream, Stream
from rayingest.execute.work import Work
from rayingest.plan.order.planner import Planner
from rayingest.plan.order.state import StateCodec
from rayingest.transforms.images.backend import choose_backend


def make_stream(
    scan_result: ScanResult, planner: Planner, work: Work, *, skip: bool, image_backend: str | None
) -> tuple[Stream, RankPlan]:
    """Return a rank's stream of scanned data, and its plan. Raises ConfigError."""
    if skip and planner.kind.no_skip:
        raise ConfigError(
            f"on_error='skip' beside an order of kind {planner.kind.name!r}: {planner.kind.no_skip}"
        )
    work = work.with_options(skip, choose_backend(image_backend))
    flag_valid = skip or planner.order.partial == "pad"
    stream = ManifestStream(planner, work, flag_valid, manifest=scan_result.manifest)
    identity = {
        "fingerprint": planner.manifest.fingerprint,
        "order": planner.identity,
        "image_backend": work.pipeline.image_backend,
    }
    codec = StateCodec(identity, work.code_mark, planner.steps_in)
    return stream, RankPlan(planner, codec, partial(describe, stream))
