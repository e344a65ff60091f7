"""The table of what goes together: each of its pairs is refused, all other pairs work."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rayingest as ri
from rayingest.build.compatibility import (
    CONFLICTS,
    NEEDS,
    PLACES,
    Conflict,
    Feature,
    Need,
    Place,
    render_page,
)

F = Feature
PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"

VERBS: dict[Feature, Callable[[Any], Any]] = {
    F.LENGTH: lambda data: data.length("n"),
    F.WHERE: lambda data: data.where("i >= 0"),
    F.FILTER: lambda data: data.filter(is_there),
    F.TAKE: lambda data: data.take(36),
    F.SKIP: lambda data: data.skip(1),
    F.SPLIT: lambda data: data.split(0.9, seed=5)[0],
    F.PACK: lambda data: data.pack(8, "tokens"),
    F.WEIGHTED: lambda data: data.weighted([1 + i % 5 for i in range(40)]),
    F.EPOCH: lambda data: data.epoch(passes=2),
    F.EPOCH_SAMPLES: lambda data: data.epoch(samples=8),
    F.SHUFFLE: lambda data: data.shuffle(seed=1),
    F.LANES: lambda data: data.shuffle(seed=1, lanes=1),
    F.BATCH: lambda data: data,
}
"""By feature, the call that adds it, in the order in which the calls are made."""

VERBS_OF_ITEMS: dict[Feature, Callable[[Any], Any]] = {
    **VERBS,
    F.LENGTH: lambda data: data.length(length_of_item),
    F.WHERE: lambda data: data.where('item["i"] >= 0'),
    F.FILTER: lambda data: data.filter(item_is_there),
}
"""The same for samples that are whole items, as a `collate_fn` gets them."""

BATCHES: dict[Feature, dict[str, Any]] = {
    F.BUCKETED: {"bucketed": True},
    F.MAX_TOKENS: {"max_tokens": 30},
    F.PARTIAL: {"partial": "pad"},
    F.COLLATE: {"collate": lambda samples: {"i": [sample["i"] for sample in samples]}},
    F.PAD: {"pad": {"tokens": ri.Pad(value=0)}},
}
"""By feature, the options of `batch` that add it."""

TORCH: dict[Feature, dict[str, Any]] = {
    F.SAMPLER: {"sampler": list(range(40))},
    F.BATCH_SAMPLER: {"batch_sampler": [[i, i + 1] for i in range(0, 40, 2)]},
    F.COLLATE_FN: {"collate_fn": lambda items: {"i": [item["i"] for item in items]}},
}
"""By feature, the options of `from_torch` that add it."""

LOADERS: dict[Feature, dict[str, Any]] = {
    F.SKIP_ERRORS: {"on_error": "skip"},
    F.EPOCHS: {"epochs": 2},
}
"""By feature, the options of `loader` that add it."""

NOT_CHOSEN = (F.LOADER, F.TO_RAY, F.FROM_TORCH)
"""A feature of every try, one that needs Ray, and one that comes with others."""
MIXES = (F.MIX, F.UNSTRATIFIED, F.CHANGING_WEIGHTS)
SOURCES = (*TORCH, F.FROM_TORCH, F.STREAM)
"""Features that the source of a mixture has."""
SAME_CALL = {F.SHUFFLE: F.LANES, F.EPOCH: F.EPOCH_SAMPLES}
"""By feature, the feature whose call adds both."""
IMPLIED = {
    F.SAMPLER: {F.FROM_TORCH},
    F.BATCH_SAMPLER: {F.SAMPLER},
    F.COLLATE_FN: {F.FROM_TORCH},
    F.EPOCH_SAMPLES: {F.EPOCH},
    F.LANES: {F.SHUFFLE},
    F.UNSTRATIFIED: {F.MIX},
    F.CHANGING_WEIGHTS: {F.MIX},
    F.PACK: {F.LENGTH},
    **{feature: {F.BATCH} for feature in BATCHES},
}
"""By feature, the features that come with it."""
NEVER = [{F.SAMPLER, F.BATCH_SAMPLER}, *({one, F.STREAM} for one in TORCH)]
"""Pairs that no data can have: `from_torch` refuses the first itself."""


def is_there(sample: dict[str, Any]) -> bool:
    return sample["i"] >= 0


def int_of(value: Any) -> int:
    return int(value)


def item_is_there(sample: dict[str, Any]) -> bool:
    return is_there(sample["item"])


def length_of_item(sample: dict[str, Any]) -> int:
    return 1 + int(sample["item"]["i"]) % 5


def with_tokens(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample whose tokens may have any length, which those of an item may not."""
    return {"i": sample["i"], "tokens": list(range(1 + sample["i"] % 5))}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return [{"i": i, "n": 1 + i % 5, "tokens": list(range(1 + i % 5))} for i in range(40)]


@pytest.fixture(scope="module")
def path(rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("compatibility") / "a.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def start(features: set[Feature], path: str, rows: list[dict[str, Any]]) -> Any:
    """Return the data that these features ask for, before any verb."""
    if F.STREAM in features:

        def open_at(name: int, offset: int | None) -> Iterator[tuple[dict[str, Any], int]]:
            for i in range(offset or 0, len(rows)):
                yield rows[i], i + 1

        return ri.stream(open_at)
    if F.FROM_TORCH not in features:
        return ri.read_json(path)
    options = merge(TORCH, features)
    if F.BATCH_SAMPLER in features:
        options.pop("sampler", None)
    data = ri.from_torch([{"i": row["i"]} for row in rows], **options)
    return data if F.COLLATE_FN in features else data.map(with_tokens)


def build(features: set[Feature], path: str, rows: list[dict[str, Any]]) -> Any:
    """Return data with all of these features."""
    data = start(features, path, rows)
    is_mix, is_source = bool(features & {*MIXES}), F.SOURCE_OF_MIX in features
    if is_mix and not is_source:
        data = mix(data, features, path)
    verbs = VERBS_OF_ITEMS if F.COLLATE_FN in features else VERBS
    for feature, call in verbs.items():
        if feature in features and SAME_CALL.get(feature) not in features:
            data = call(data)
    if F.BATCH in features:
        options = merge(BATCHES, features)
        data = data.batch(**({} if "max_tokens" in options else {"size": 4}), **options)
    if not is_source:
        return data
    if is_mix:
        data = mix(data, features, path)
    data = ri.mix({"a": data}).batch(4)
    return data.shuffle(seed=1) if F.UNSTRATIFIED in features else data


def mix(data: Any, features: set[Feature], path: str) -> Any:
    """Return a mixture of the data with others, as these features ask for."""
    changing = {0: {"a": 1, "b": 1}, 3: {"a": 2, "b": 1}}
    return ri.mix(
        {"a": data, "b": ri.read_json(path)},
        changing if F.CHANGING_WEIGHTS in features else None,
        stratified=F.UNSTRATIFIED not in features,
    )


def merge(by_feature: dict[Feature, dict[str, Any]], features: set[Feature]) -> dict[str, Any]:
    """Return the options of all these features."""
    given = (options for feature, options in by_feature.items() if feature in features)
    return {name: value for options in given for name, value in options.items()}


def complete(pair: tuple[Feature, ...]) -> set[Feature]:
    """Return the features with all that come with them or that they need."""
    features, before = {*pair, F.LOADER}, set[Feature]()
    while features != before:
        before = set(features)
        features.update(*(IMPLIED.get(feature, set()) for feature in before))
        for need in NEEDS:
            if need.one in features and need.instead not in features:
                features.add(need.other)
    if F.SOURCE_OF_MIX in pair and not {*pair} & {F.BATCH, *BATCHES}:
        features.discard(F.BATCH)
    return features


def find_refusals(features: set[Feature]) -> list[str]:
    """Return the rows of the table that refuse these features of data, or of their sources."""
    parts = [features]
    if features & {*MIXES}:
        parts = [features - {*SOURCES}, features & {*SOURCES} | {F.SOURCE_OF_MIX}]
        if F.SOURCE_OF_MIX in features:
            parts.append(features & {*MIXES} | {F.SOURCE_OF_MIX})
    return [str(row) for row in CONFLICTS for one in parts if {row.one, row.other} <= one]


def try_out(features: set[Feature], path: str, rows: list[dict[str, Any]]) -> None:
    """Take a batch of data with these features."""
    with build(features, path, rows).loader(workers=0, **merge(LOADERS, features)) as loader:
        next(iter(loader))


CHOSEN = [feature for feature in Feature if feature not in NOT_CHOSEN]
PAIRS = [pair for pair in itertools.combinations(CHOSEN, 2) if {*pair} not in NEVER]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: " with ".join(f.name for f in pair))
def test_a_pair_works_unless_the_table_refuses_it(
    pair: tuple[Feature, Feature], path: str, rows: list[dict[str, Any]]
) -> None:
    """Each two features are tried, with all that they need, on a loader that gives a batch."""
    features = complete(pair)
    refusals = find_refusals(features)
    if not refusals:
        try_out(features, path, rows)
        return
    with pytest.raises(ri.ConfigError) as caught:
        try_out(features, path, rows)
    assert any(refusal in str(caught.value) for refusal in refusals), (refusals, caught.value)


@pytest.mark.parametrize("need", NEEDS, ids=lambda need: f"{need.one.name} needs {need.other.name}")
def test_what_a_feature_needs_is_asked_for(
    need: Need, path: str, rows: list[dict[str, Any]]
) -> None:
    """With all other needs met, the error names the one that is missing."""
    features = complete((need.one,)) - {need.other}
    with pytest.raises(ri.ConfigError) as caught:
        try_out(features, path, rows)
    assert str(caught.value) == str(need)


VERBS_BY_PLACE: dict[Feature, Callable[[Any], Any]] = {
    **VERBS,
    F.DECODE: lambda data: data.decode(i=int_of),
    F.MAP: lambda data: data.map(dict),
    F.MAP_BATCHES: lambda data: data.map_batches(dict),
    F.BATCH: lambda data: data.batch(4),
}


@pytest.mark.parametrize("row", PLACES, ids=str)
def test_a_call_that_comes_too_late_is_refused(row: Place, path: str) -> None:
    """Each row of the table is an error at the second call, and the first call alone is fine."""
    first, second = VERBS_BY_PLACE[row.other], VERBS_BY_PLACE[row.one]
    data = first(ri.read_json(path))
    with pytest.raises(ri.ConfigError, match=re.escape(str(row))):
        second(data)


def test_a_call_after_batch_is_refused_for_mixtures_and_streams_too(path: str) -> None:
    """Work on samples behind `batch` would be work on batches in other libraries."""
    mixture = ri.mix({"a": ri.read_json(path)}).batch(4)
    stream = ri.stream(lambda name, offset: iter(())).batch(4)
    for data in (mixture, stream):
        with pytest.raises(ri.ConfigError, match=r"call \.map before \.batch"):
            data.map(dict)


@pytest.mark.parametrize("row", [row for row in CONFLICTS if row.one is F.TO_RAY], ids=str)
def test_to_ray_is_refused_before_ray_starts(
    row: Conflict, path: str, rows: list[dict[str, Any]]
) -> None:
    """Data that no Ray Dataset can hold are refused at once."""
    with pytest.raises(ri.ConfigError, match=re.escape(str(row))):
        build(complete((row.other,)) - {F.BATCH}, path, rows).to_ray()


def test_verbs_that_are_refused_are_not_there(path: str) -> None:
    """Completion shows what works: a mixture and a stream lack the verbs that the table refuses."""
    shared = {"batch", "decode", "loader", "map", "map_batches", "select"}
    mixture = ri.mix({"a": ri.read_json(path)})
    stream = ri.stream(lambda name, offset: iter(()))
    assert {name for name in dir(mixture) if name[0] != "_"} == {*shared, "names", "shuffle"}
    assert {name for name in dir(stream) if name[0] != "_"} == shared
    verbs = {*shared, "epoch", "filter", "length", "pack", "shuffle", "skip", "split", "take"}
    verbs |= {"to_ray", "weighted", "where"}
    assert {name for name in dir(ri.read_json(path)) if name[0] != "_"} == verbs
    for data in (mixture, stream):
        for name in verbs - set(dir(data)):
            assert not hasattr(data, name)
            with pytest.raises(ri.ConfigError, match=f"{name} cannot be used with"):
                getattr(data, name)
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            data.nothing  # noqa: B018


def test_the_page_is_up_to_date() -> None:
    """`python -m rayingest.build.compatibility docs/compatibility.md` writes it from the table."""
    assert PAGE.read_text() == "\n".join(render_page()) + "\n"
