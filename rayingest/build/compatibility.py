"""Define which parts of a description go together: one table makes the errors and a docs page.

    python -m rayingest.build.compatibility docs/compatibility.md

Owns all pairs that are refused, with the reason and with what works instead. Every verb, `mix` and
`loader` ask this table; the page in `docs/` is written from it by the command above. It refuses
pairs of features only: the values of one option are checked where the option is declared.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from rayingest.errors import ConfigError


class Feature(Enum):
    """A part of a description that restricts others, written as the user writes it."""

    SHUFFLE = "shuffle"
    LANES = "shuffle(lanes=...)"
    SELECT = "select"
    DECODE = "decode"
    MAP = "map"
    MAP_BATCHES = "map_batches"
    BATCH = "batch"
    BUCKETED = "batch(bucketed=True)"
    MAX_TOKENS = "batch(max_tokens=...)"
    PARTIAL = "batch(partial='pad' or 'short')"
    COLLATE = "batch(collate=...)"
    PAD = "batch(pad=...)"
    WHERE = "where"
    FILTER = "filter"
    TAKE = "take"
    SKIP = "skip"
    SPLIT = "split"
    LENGTH = "length"
    PACK = "pack"
    WEIGHTED = "weighted"
    EPOCH = "epoch"
    EPOCH_SAMPLES = "epoch(samples=...)"
    FROM_TORCH = "from_torch"
    SAMPLER = "from_torch(sampler=...)"
    BATCH_SAMPLER = "from_torch(batch_sampler=...)"
    COLLATE_FN = "from_torch(collate_fn=...)"
    MIX = "mix"
    UNSTRATIFIED = "mix(stratified=False)"
    CHANGING_WEIGHTS = "mix(weights={step: ...})"
    SOURCE_OF_MIX = "a source of mix"
    STREAM = "stream"
    LOADER = "loader"
    SKIP_ERRORS = "loader(on_error='skip')"
    EPOCHS = "loader(epochs=...)"
    TO_RAY = "to_ray"


class Conflict(NamedTuple):
    """Two features that are refused together, and why; `remedy` says what works instead."""

    one: Feature
    other: Feature
    reason: str
    remedy: str

    def __str__(self) -> str:
        link = "in" if self.other is Feature.SOURCE_OF_MIX else "with"
        pair = f"{self.one.value} cannot be used {link} {self.other.value}"
        return f"{self.reason}: {pair}; {self.remedy}"


class Need(NamedTuple):
    """A feature that a loader refuses unless the other one, or `instead`, is there."""

    one: Feature
    other: Feature
    reason: str
    remedy: str
    instead: Feature | None = None

    def __str__(self) -> str:
        return f"{self.reason}: {self.one.value} needs .{self.other.value}(); {self.remedy}"


class Place(NamedTuple):
    """A call that is refused after the other one, and why; `remedy` says what works instead."""

    one: Feature
    other: Feature
    reason: str
    remedy: str

    def __str__(self) -> str:
        if self.one is self.other:
            return f"{self.reason}: {self.one.value} is called twice; {self.remedy}"
        pair = f"{self.one.value} cannot come after {self.other.value}"
        return f"{self.reason}: {pair}; {self.remedy}"


class RefusedError(ConfigError, AttributeError):
    """A verb that this kind of data does not have; `hasattr` is False for it."""


F = Feature
_LEAVE_OUT = "leave one of them out"
_LIMITS = (F.WHERE, F.FILTER, F.TAKE, F.SKIP, F.SPLIT)


def _conflicts(
    features: Iterable[Feature], other: Feature, reason: str, remedy: str = _LEAVE_OUT
) -> list[Conflict]:
    """Return one row for each feature, with the same other feature, reason and remedy."""
    return [Conflict(one, other, reason, remedy) for one in features]


CONFLICTS: tuple[Conflict, ...] = (
    *_conflicts([F.BATCH], F.BATCH_SAMPLER, "the batch_sampler decides the batches"),
    *_conflicts(
        [F.EPOCH_SAMPLES],
        F.BATCH_SAMPLER,
        "the batch_sampler decides how long an epoch is",
        "call epoch(passes=...), or leave one of them out",
    ),
    *_conflicts(
        [*_LIMITS, F.PACK, F.WEIGHTED, F.SHUFFLE, F.BUCKETED, F.MAX_TOKENS, F.TO_RAY],
        F.SAMPLER,
        "the sampler decides which samples come, and in which order",
    ),
    *_conflicts([F.COLLATE, F.PAD, F.PACK], F.COLLATE_FN, "the collate_fn makes the batches"),
    *_conflicts([F.PAD], F.COLLATE, "the collate function makes the batches"),
    *_conflicts(
        [F.EPOCH, F.WEIGHTED, F.BUCKETED, F.COLLATE, F.MAX_TOKENS],
        F.PACK,
        "pack decides which samples come together, and how many",
    ),
    *_conflicts(
        [F.EPOCH, F.WEIGHTED, F.BUCKETED],
        F.MAX_TOKENS,
        "max_tokens decides which samples come together, and how many",
    ),
    *_conflicts(
        [F.SKIP_ERRORS],
        F.PACK,
        "a replacement would not have the length of the bad sample",
        "leave bad samples out with .filter",
    ),
    *_conflicts(
        [F.SKIP_ERRORS],
        F.MAX_TOKENS,
        "a replacement would not have the length of the bad sample",
        "leave bad samples out with .filter",
    ),
    *_conflicts(
        [F.EPOCH_SAMPLES],
        F.PARTIAL,
        "epoch(samples=...) counts full batches only",
        "call batch(partial='drop') or epoch(passes=...)",
    ),
    *_conflicts(
        [F.CHANGING_WEIGHTS],
        F.PARTIAL,
        "weights that change at a step need full batches",
        "call batch(partial='drop')",
    ),
    *_conflicts(
        [F.PACK, F.WEIGHTED, F.BUCKETED, F.MAX_TOKENS],
        F.MIX,
        "a mixture decides by weights alone which samples come together",
        _LEAVE_OUT,
    ),
    *_conflicts(
        [*_LIMITS, F.LENGTH],
        F.MIX,
        "a mixture has no samples of its own",
        "call the verb on each source, before mix",
    ),
    *_conflicts(
        [F.EPOCH],
        F.MIX,
        "the option until of mix decides how long an epoch is",
        "call mix(until=...)",
    ),
    *_conflicts(
        [F.LANES], F.MIX, "each source has its own lanes", "call shuffle(lanes=...) on the sources"
    ),
    *_conflicts(
        [F.TO_RAY], F.MIX, "a Ray Dataset is made of one source", "call to_ray on each source"
    ),
    *_conflicts(
        [F.SAMPLER],
        F.SOURCE_OF_MIX,
        "the mixture decides which samples come",
        "leave the sampler out",
    ),
    *_conflicts(
        [F.BATCH], F.SOURCE_OF_MIX, "the mixture decides the batches", "call batch on the mixture"
    ),
    *_conflicts(
        [F.EPOCH],
        F.SOURCE_OF_MIX,
        "the option until of mix decides how long an epoch is",
        "call mix(until=...)",
    ),
    *_conflicts(
        [F.PACK],
        F.SOURCE_OF_MIX,
        "neither a mixture nor its sources can be packed",
        "leave pack out",
    ),
    *_conflicts(
        [F.WEIGHTED],
        F.SOURCE_OF_MIX,
        "a mixture weighs its sources, not their samples",
        "call mix(weights=...)",
    ),
    *_conflicts(
        [F.COLLATE_FN],
        F.SOURCE_OF_MIX,
        "all sources share one way to make batches",
        "call batch(collate=...) on the mixture",
    ),
    *_conflicts(
        [F.STREAM],
        F.SOURCE_OF_MIX,
        "a stream has no end",
        "mix the records in open_at",
    ),
    *_conflicts(
        [F.CHANGING_WEIGHTS],
        F.SOURCE_OF_MIX,
        "only the outermost mixture knows the step",
        "give the changing weights to the outermost mix",
    ),
    *_conflicts(
        [F.SHUFFLE, *_LIMITS, F.LENGTH, F.PACK, F.WEIGHTED, F.EPOCH, F.BUCKETED, F.MAX_TOKENS],
        F.STREAM,
        "the records of a stream, and their number, are not known beforehand",
        "choose, mix and group the records in open_at",
    ),
    *_conflicts(
        [F.PARTIAL],
        F.STREAM,
        "records that do not fill a batch come in the next pass",
        "call batch(partial='drop')",
    ),
    *_conflicts(
        [F.TO_RAY],
        F.STREAM,
        "a stream has no end, and a Ray Dataset has one",
        "iterate over a loader",
    ),
    *_conflicts(
        [F.EPOCHS],
        F.STREAM,
        "a stream is one epoch, which ends when its partitions end",
        "leave epochs out",
    ),
)

NEEDS: tuple[Need, ...] = (
    Need(
        F.LOADER,
        F.BATCH,
        "a loader must know how many samples make a step",
        "call .batch(global_size) first",
        F.BATCH_SAMPLER,
    ),
    Need(
        F.BUCKETED,
        F.LENGTH,
        "buckets are formed by the lengths of samples",
        "call .length(field) first",
    ),
    Need(
        F.BUCKETED,
        F.SHUFFLE,
        "buckets are formed inside the windows of a shuffle",
        "call .shuffle(seed=...)",
    ),
    Need(
        F.MAX_TOKENS,
        F.LENGTH,
        "the lengths decide how many samples fit",
        "call .length(field) first",
    ),
    Need(
        F.WEIGHTED,
        F.SHUFFLE,
        "without a shuffle, repeats of a sample would follow each other",
        "call .shuffle(seed=...)",
    ),
    Need(
        F.UNSTRATIFIED,
        F.SHUFFLE,
        "the seed of a shuffle decides the order of the sources",
        "call .shuffle(seed=...) on the mixture",
    ),
)


PLACES: tuple[Place, ...] = (
    *(
        Place(
            verb,
            F.BATCH,
            "stages work on single samples, not on batches",
            f"call .{verb.value} before .batch, or use batch(collate=fn) for work on a batch",
        )
        for verb in (F.DECODE, F.MAP, F.MAP_BATCHES)
    ),
    *(
        Place(
            verb,
            F.BATCH,
            "samples are chosen one by one, not in batches",
            f"call .{verb.value} before .batch",
        )
        for verb in (F.WHERE, F.FILTER, F.TAKE, F.SKIP)
    ),
    *(
        Place(
            verb,
            F.SHUFFLE,
            "samples are counted in file order, whatever the shuffle",
            f"call .{verb.value} before .shuffle, or use .split(0.1)[0] for a random part",
        )
        for verb in (F.TAKE, F.SKIP)
    ),
    Place(
        F.LENGTH,
        F.PACK,
        "pack has taken the lengths of its first field",
        "call .length before .pack",
    ),
    *(
        Place(
            verb,
            verb,
            "the second call would replace the first",
            f"call .{verb.value} once",
        )
        for verb in (F.LENGTH, F.WEIGHTED, F.EPOCH, F.PACK, F.SHUFFLE)
    ),
)


def refuse_place(verb: Feature, earlier: Iterable[Feature]) -> None:
    """Raise ConfigError if a verb cannot come after these earlier ones."""
    before = set(earlier)
    for row in PLACES:
        if row.one is verb and row.other in before:
            raise ConfigError(str(row))


def find_conflict(features: Iterable[Feature]) -> Conflict | None:
    """Return the first row of the table whose two features are both in `features`."""
    there = set(features)
    return next((row for row in CONFLICTS if row.one in there and row.other in there), None)


def refuse_conflicts(features: Iterable[Feature]) -> None:
    """Raise ConfigError if two of these features do not go together."""
    conflict = find_conflict(features)
    if conflict is not None:
        raise ConfigError(str(conflict))


def check_complete(features: Iterable[Feature]) -> None:
    """Raise ConfigError if a feature lacks one that it needs, or if two do not go together."""
    there = set(features)
    refuse_conflicts(there)
    for need in NEEDS:
        if need.one in there and not there & {need.other, need.instead}:
            raise ConfigError(str(need))


def refusal(verb: str, kind: Feature | None) -> RefusedError | None:
    """Return the error for a verb that this kind of data does not have, None for other names."""
    for row in CONFLICTS:
        if row.one.value == verb and row.other is kind:
            return RefusedError(str(row))
    return None


def render_page() -> Iterator[str]:
    """Yield the lines of the page in `docs/`."""
    yield from _INTRODUCTION
    yield ""
    yield "## What does not go together"
    yield ""
    yield from _table("this call", "cannot be used with", CONFLICTS)
    yield ""
    yield "## What cannot come after another call"
    yield ""
    yield from _table("this call", "cannot come after", PLACES)
    yield ""
    yield "## What a loader needs"
    yield ""
    yield from _table("this call", "needs", NEEDS)


def _table(one: str, other: str, rows: Iterable[Conflict | Place | Need]) -> Iterator[str]:
    yield f"| {one} | {other} | reason | works instead |"
    yield "|---|---|---|---|"
    for row in rows:
        cells = (_code(row.one), _code(row.other), row.reason, row.remedy)
        yield f"| {' | '.join(cells)} |"


def _code(feature: Feature) -> str:
    return feature.value if feature is F.SOURCE_OF_MIX else f"`{feature.value}`"


_INTRODUCTION = """\
# Which calls go together

<!-- Written by `python -m rayingest.build.compatibility docs/compatibility.md`; do not edit. -->

All calls on a data set go together, except the pairs on this page. The second call of a pair in
the first two tables raises a `ConfigError`. `loader` checks the last table. Each error gives the
reason, both calls, and a call that works instead.

A mixture and a stream lack the verbs that the first table refuses for them: completion does not
show these verbs, and calling one raises the reason.""".splitlines()


if __name__ == "__main__":
    page = "\n".join(render_page()) + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(page)
    else:
        sys.stdout.write(page)
