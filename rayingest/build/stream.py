"""From a rank's planner to its stream, and to what its loader knows of the plan.

Owns which of the options of a loader change the stream; how it is run is the business of `loading`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rayingest.build.scan import ScanResult
from rayingest.errors import ConfigError
from rayingest.execute.stream import ManifestStream, Stream
from rayingest.execute.work import Work
from rayingest.plan.order.mixed import MixedPlanner
from rayingest.plan.order.offsets import Bookmarks
from rayingest.plan.order.packed import GroupedPlanner
from rayingest.plan.order.planner import Planner
from rayingest.plan.order.state import StateCodec
from rayingest.plan.order.step_samples import Plan
from rayingest.transforms.images.backend import choose_backend


class Codec(Protocol):
    """Turns positions into states and back."""

    def state(self, epoch: int, step: int) -> dict[str, Any]: ...

    def position(self, state: Mapping[str, Any]) -> tuple[int, int]: ...


@dataclass(frozen=True)
class View:
    """A rank's plan as its loader sees it; `marks` are those of a plan that is made of them."""

    plan: Plan
    codec: Codec
    marks: Bookmarks | None = None

    def steps_in(self, epoch: int) -> int:
        return self.plan.steps_in(epoch)

    @property
    def rank(self) -> int:
        return self.plan.rank

    @property
    def world_size(self) -> int:
        return self.plan.world_size

    def reached(self, epoch: int, step: int) -> None:
        if self.marks is not None:
            self.marks.reached(step)

    def state(self, epoch: int, step: int) -> dict[str, Any]:
        return self.codec.state(epoch, step)

    def position(self, state: dict[str, Any]) -> tuple[int, int]:
        return self.codec.position(state)


def planned(
    known: ScanResult, planner: Planner, work: Work, *, skip: bool, image_backend: str | None
) -> tuple[Stream, View]:
    """A rank's stream of data whose blocks are known. Raises ConfigError."""
    if skip and isinstance(planner, GroupedPlanner):
        raise ConfigError(
            "on_error='skip' beside .pack or batch(max_tokens=...): a stand-in would not be as long as the sample that "
            "it stands in for; leave bad samples out with .filter"
        )
    work = work.with_options(skip, choose_backend(image_backend))
    flag_valid = skip or planner.order.partial == "pad"
    codec = StateCodec(
        planner.fingerprint,
        planner.order,
        work.pipeline.image_backend,
        work.code_mark,
        view=known.view_mark,
        calendar=planner.calendar,
        lengths=known.lengths_mark,
        grouping=str(planner.order) if isinstance(planner, GroupedPlanner) else "",
        mixture=str(planner.order) if isinstance(planner, MixedPlanner) else "",
        weights=known.weights_mark,
        steps_in=planner.steps_in,
    )
    return ManifestStream(planner, work, flag_valid, manifest=known.manifest), View(planner, codec)
