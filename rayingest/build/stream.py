"""Turn a rank's planner into its stream, and into the plan that its loader uses.

Owns the values that name a rank and its plan, which options of a loader change the stream, and the
line and the warnings that a loader logs before the stream starts. How the stream is run is the
business of the loader.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rayingest.errors import ConfigError
from rayingest.execute.stream import ManifestStream, Stream
from rayingest.execute.work import Work
from rayingest.plan.order.manifest import Manifest
from rayingest.plan.order.planner import Planner
from rayingest.plan.order.state import StateCodec
from rayingest.transforms.images.jpeg import choose_backend

_FEW_BLOCKS = 16

_log = logging.getLogger("rayingest")


@dataclass(frozen=True)
class Ranks:
    """A rank of a world. `local_world_size` counts the ranks on this node, None if unknown."""

    rank: int
    world_size: int
    local_world_size: int | None


@dataclass(frozen=True)
class RankPlan:
    """A rank's plan as its loader sees it.

    `describe` logs what a user should know of the stream, given the bytes that it may have in
    flight. A stream without end gives `on_reached`: it is called with each step that the training
    loop has received, so that older offsets can go.
    """

    planner: Planner
    codec: StateCodec
    describe: Callable[[int], None]
    on_reached: Callable[[int], None] | None = None

    @property
    def rank(self) -> int:
        return self.planner.rank

    @property
    def world_size(self) -> int:
        return self.planner.world_size

    @property
    def is_endless(self) -> bool:
        """Whether there is one epoch that never ends."""
        return self.planner.is_endless

    def steps_in(self, epoch: int) -> int:
        return self.planner.steps_in(epoch)

    def reached(self, epoch: int, step: int) -> None:
        if self.on_reached is not None:
            self.on_reached(step)

    def state(self, epoch: int, step: int) -> dict[str, Any]:
        return self.codec.state(epoch, step)

    def position(self, state: dict[str, Any]) -> tuple[int, int]:
        return self.codec.position(state)


def make_stream(
    manifest: Manifest, planner: Planner, work: Work, *, skip: bool, image_backend: str | None
) -> tuple[Stream, RankPlan]:
    """Return a rank's stream of the data in a manifest, and its plan. Raises ConfigError."""
    if skip and planner.kind.no_skip:
        raise ConfigError(
            f"{planner.kind.no_skip} (on_error='skip', in an order of kind {planner.kind.name!r})"
        )
    work = work.with_options(skip, choose_backend(image_backend))
    flag_valid = skip or planner.order.partial == "pad"
    stream = ManifestStream(planner, work, flag_valid, manifest=manifest)
    identity = {
        "fingerprint": planner.manifest.fingerprint,
        "order": planner.identity,
        "image_backend": work.pipeline.image_backend,
    }
    codec = StateCodec(identity, work.code_mark, planner.steps_in)
    return stream, RankPlan(planner, codec, partial(describe, stream))


def describe(stream: ManifestStream, max_bytes: int) -> None:
    """Log what is read, in which order and how often, and warn of a small budget or window."""
    manifest, order, world_size = stream.manifest, stream.planner.order, stream.planner.world_size
    order_words = "file order"
    if order.seed is not None:
        order_words = f"windows of {order.window_samples:,} samples in {order.lanes} lane(s)"
    if len(stream.planner.subsets) > 1:
        order_words += f" of {len(stream.planner.subsets)} sources"
    _log.info(
        "%s samples, %s blocks, %s shards, %s; %s steps an epoch, %s; %.2f reads per block; "
        "up to %s in flight",
        _samples(stream.planner),
        f"{manifest.num_blocks:,}",
        f"{len(manifest.paths):,}",
        format_bytes(manifest.total_bytes),
        f"{stream.planner.steps_in(0):,}",
        order_words,
        stream.planner.reads_per_block(),
        format_bytes(max_bytes),
    )
    if order.seed is None or stream.planner.rank:
        return
    share = min(order.window_samples, order.samples) / world_size
    # Samples that the subset leaves out are read too, since they lie in the same blocks.
    share *= manifest.num_samples / stream.planner.num_samples
    block_bytes = manifest.total_bytes / manifest.num_blocks
    lanes = stream.planner.reads_per_block() * order.lanes / world_size
    window_bytes = (
        share * manifest.total_bytes / manifest.num_samples * stream.planner.reads_per_block()
    )
    window_bytes = min(max(window_bytes, lanes * block_bytes), manifest.total_bytes)
    if window_bytes > max_bytes:
        _log.warning(
            "blocks will be evicted and read again many times: a rank's part of a window, %.3g "
            "lane(s) of at least one block each, has about %s, more than max_bytes=%s; give "
            "loader() more max_bytes, or shuffle() %s",
            lanes,
            format_bytes(window_bytes),
            format_bytes(max_bytes),
            _fitting_window(
                stream.planner,
                block_bytes,
                manifest.total_bytes / manifest.num_samples,
                max_bytes * world_size,
            ),
        )
    blocks = share * manifest.num_blocks / manifest.num_samples
    if blocks < _FEW_BLOCKS and order.samples > order.window_samples:
        _log.warning(
            "samples of one block stay close together: a rank's part of a window is only about "
            "%.1f blocks; give shuffle() a larger window, or the reader smaller block_bytes",
            blocks,
        )


def format_bytes(nbytes: float) -> str:
    """Return a number of bytes in the largest unit that keeps it at 1 or more, up to TiB."""
    power = min(4, int(math.log(max(nbytes, 1), 1024)))
    return f"{nbytes / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def _fitting_window(planner: Planner, block_bytes: float, sample_bytes: float, budget: int) -> str:
    """Return words for a window that half the budget of all ranks can hold.

    Each lane gets room for two blocks. A mixture gets no numbers: each of its sources has its own.
    """
    order = planner.order
    lanes = max(
        count
        for count in range(1, order.lanes + 1)
        if order.batch % count == 0 and (count == 1 or 4 * count * block_bytes <= budget)
    )
    window = 2 ** int(math.log2(max(1.0, budget / 2 / sample_bytes)))
    if len(planner.subsets) > 1 or 4 * lanes * block_bytes > budget or window < order.batch:
        return "a smaller window and fewer lanes"
    return f"a window that has room, such as window={window}, lanes={lanes}"


def _samples(planner: Planner) -> str:
    """Return the number of samples, and that of all samples if some are left out."""
    total, count = planner.manifest.num_samples, planner.num_samples
    return f"{total:,}" if count == total else f"{count:,} of {total:,}"
