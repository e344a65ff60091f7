"""The order once more, written from its rules with integers and lists, to hold the planner against.

It shares with the package only the keyed bijection and the keys' domains. It is slow, holds a whole
epoch in memory, and refuses nothing: callers give it parameters that make sense.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from rayingest.plan.order import randomness

T = TypeVar("T")


class Row(NamedTuple):
    """One row of a global batch; `lane`, `window` and `until` say where it came from and how long
    that lasts.
    """

    block: int
    row: int
    valid: bool
    lane: int
    window: int
    until: int


@dataclass(frozen=True)
class Rules:
    """The parameters of an order. `window` counts samples over all lanes."""

    counts: tuple[int, ...]
    batch: int
    partial: str
    seed: int | None
    lanes: int
    window: int

    @property
    def samples(self) -> int:
        return sum(self.counts)

    @property
    def lane_batch(self) -> int:
        return self.batch // self.lanes

    @property
    def full_steps(self) -> int:
        return self.samples // self.batch

    @property
    def steps(self) -> int:
        return self.full_steps if self.partial == "drop" else -(-self.samples // self.batch)


def sequence(rules: Rules, epoch: int) -> list[tuple[int, int]]:
    """(block, row) of all samples in a row: blocks permuted, then everything rotated."""
    blocks = list(range(len(rules.counts)))
    rotation = 0
    if rules.seed is not None:
        blocks = _permuted(blocks, randomness.fold("blocks", rules.seed, epoch))
        rotation = randomness.fold("rotation", rules.seed, epoch) % rules.samples
    row = [(block, i) for block in blocks for i in range(rules.counts[block])]
    return row[rotation:] + row[:rotation]


def windows(rules: Rules, lane: int) -> list[tuple[int, int]]:
    """[begin, end) of each window of a lane, in positions of that lane."""
    begin, end = lane_bounds(rules, lane)
    samples, b = end - begin, rules.lane_batch
    size = b
    while size * rules.lanes < rules.window:  # window/L, rounded up to a multiple of b
        size += b
    if size >= samples:
        return [(0, samples)]
    shorter = (size // b) * ((lane * 2654435769) % 2**32) // 2**32
    edges = [0, size - shorter * b]
    while edges[-1] < samples:
        edges.append(edges[-1] + size)
    edges[-1] = samples
    if len(edges) > 2 and edges[-1] - edges[-2] < b:
        del edges[-2]
    return list(pairwise(edges))


def lane_bounds(rules: Rules, lane: int) -> tuple[int, int]:
    """[begin, end) of a lane in the epoch's sequence."""
    return lane * rules.samples // rules.lanes, (lane + 1) * rules.samples // rules.lanes


def lanes(rules: Rules, epoch: int) -> list[list[Row]]:
    """Every lane's samples in the order in which they are taken, all of them valid."""
    places = sequence(rules, epoch)
    if rules.seed is None:
        ends = [sum(rules.counts[: block + 1]) for block in range(len(rules.counts))]
        untils = [min(rules.steps, (end - 1) // rules.batch + 1) for end in ends]
        return [[Row(block, row, True, 0, block, untils[block]) for block, row in places]]
    result = []
    for lane in range(rules.lanes):
        own = places[slice(*lane_bounds(rules, lane))]
        rows: list[Row] = []
        for number, (begin, end) in enumerate(windows(rules, lane)):
            mixed = _permuted(
                own[begin:end], randomness.fold("window", rules.seed, epoch, lane, number)
            )
            until = rules.steps if end == len(own) else end // rules.lane_batch
            rows += [Row(block, row, True, lane, number, until) for block, row in mixed]
        result.append(rows)
    return result


def batches(rules: Rules, epoch: int) -> list[list[Row]]:
    """The global batch of every step of an epoch."""
    rows, b = lanes(rules, epoch), rules.lane_batch
    result = [
        [lane[p] for lane in rows for p in range(s * b, (s + 1) * b)]
        for s in range(rules.full_steps)
    ]
    if rules.steps > rules.full_steps:
        begin, end = rules.full_steps * b, (rules.full_steps + 1) * b
        if rules.partial == "short":
            result.append([row for lane in rows for row in lane[begin:]])
        else:
            result.append(
                [_padded(lane, p, rules.steps) for lane in rows for p in range(begin, end)]
            )
    return result


def _padded(lane: list[Row], position: int, steps: int) -> Row:
    n = len(lane)
    if position < n:
        return lane[position]
    # Nothing outlives the epoch's last step, the only one that repeats.
    return lane[n - 1 - ((position - n) % n)]._replace(valid=False, until=steps)


def _permuted(items: list[T], key: int) -> list[T]:
    """Entry i of the result is the entry that the keyed bijection sends i to."""
    return [items[i] for i in randomness.permute(np.arange(len(items)), len(items), key).tolist()]
