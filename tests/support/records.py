"""Unbounded sources for tests and their records. Ray workers import this module by name."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import rayingest as ri
from rayingest.api.dataset import Dataset
from tests.support.streams import Step, joined

Pair = tuple[dict[str, Any], Any]


class Counts:
    """Partition p has `lengths[p]` records: p's number and their own; offsets are [record]. Each
    pulled record adds a byte to a file.
    """

    def __init__(self, lengths: Sequence[int], pulled: Path | None = None) -> None:
        self.lengths, self.pulled = lengths, pulled

    def __call__(self, partition: int, offset: list[int] | None) -> Iterator[Pair]:
        begin = 0 if offset is None else offset[0]
        for i in range(begin, self.lengths[partition]):
            if self.pulled is not None:
                with self.pulled.open("ab") as file:
                    file.write(b".")
            yield (
                {"p": partition, "i": i, "ragged": [*range(i % 3)], "name": f"{partition}-{i}"},
                [i + 1],
            )


def noise(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return random numbers of each record's own generator."""
    return {**sample, "noise": rng.random()}


def counts(lengths: Sequence[int], batch: int, pulled: Path | None = None) -> Dataset:
    """Describe numbered records with noise."""
    return (
        ri.stream(Counts(lengths, pulled), partitions=len(lengths), seed=5).map(noise).batch(batch)
    )


def in_turn(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return the order of records, by its plainest definition."""
    rounds = itertools.zip_longest(
        *([(p, i) for i in range(length)] for p, length in enumerate(lengths))
    )
    return [record for round_ in rounds for record in round_ if record is not None]


def numbers(batch: dict[str, Any]) -> list[tuple[int, int]]:
    """Return a batch's records."""
    return list(zip(batch["p"].tolist(), batch["i"].tolist(), strict=True))


def follow(
    data: Dataset,
    world_size: int = 1,
    *,
    state: Any = None,
    steps: int | None = None,
    **options: Any,
) -> tuple[list[Step], dict[str, Any]]:
    """Return the global steps of one pass, or its first ones, and the state after them."""
    if "pool" not in options:
        options["workers"] = 0
    seen: list[Step] = []
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(data.loader(rank=rank, world_size=world_size, **options))
            for rank in range(world_size)
        ]
        for loader in loaders if state is not None else ():
            loader.load_state_dict(json.loads(json.dumps(state)))
        passes = [iter(loader) for loader in loaders]
        while steps is None or len(seen) < steps:
            parts = [next(running, None) for running in passes]
            if None in parts:
                assert parts == [None] * world_size
                break
            seen.append(joined(part for part in parts if part is not None))
        states = [loader.state_dict() for loader in loaders]
        assert states == states[:1] * world_size
        return seen, states[0]
