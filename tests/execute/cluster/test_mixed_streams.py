"""Mixtures of sources in different formats: exact shares, the same stream anywhere, resumable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rayingest as ri
from rayingest.api.dataset import Dataset
from tests.support.streams import run

DOCUMENTS, ROWS = 60, 110


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JSON Lines whose sample 7 differs from the others, and Parquet; `i` is a sample's place."""
    folder = tmp_path_factory.mktemp("mixture")
    documents = [{"i": i, "tokens": list(range(i % 5)), "more": 1} for i in range(DOCUMENTS)]
    (folder / "web.jsonl").write_text(
        "".join(json.dumps(document) + "\n" for document in documents)
    )
    columns = {
        "i": pa.array(np.arange(ROWS, dtype=np.int32)),
        "tokens": pa.array([[i] * (i % 4) for i in range(ROWS)], pa.list_(pa.int32())),
    }
    pq.write_table(pa.table(columns), folder / "code.parquet", row_group_size=9)
    return folder


def noisy(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "noise": rng.random()}


def web(folder: Path) -> Dataset:
    return ri.read_json(str(folder / "web.jsonl"), block_bytes=300).select(i="i", tokens="tokens")


def code(folder: Path) -> Dataset:
    return ri.read_parquet(str(folder / "code.parquet")).where("i != 50")


def mixed(folder: Path, **options: Any) -> Dataset:
    """Two samples of code for one of web, with their own noise, in batches of 8."""
    options.setdefault("weights", {"web": 1, "code": 2})
    return (
        ri.mix({"web": web(folder), "code": code(folder)}, **options)
        .map(noisy)
        .shuffle(seed=3, window=40)
        .batch(8)
    )


def batches(data: Dataset, epochs: int = 1, **options: Any) -> list[dict[str, list[Any]]]:
    with data.loader(workers=0, epochs=epochs, **options) as loader:
        return [
            {name: np.asarray(column).tolist() for name, column in batch.items()}
            for _ in range(epochs)
            for batch in loader
        ]


def test_a_batch_has_its_share_of_every_source(folder: Path) -> None:
    """Exact within one, over all batches so far. Each row names its source and sample."""
    data = mixed(folder)
    assert data.names == ("web", "code")
    had = np.zeros(2)
    seen: list[tuple[int, int]] = []
    for number, batch in enumerate(batches(data, epochs=3), 1):
        assert set(batch) == {"i", "tokens", "tokens_length", "noise", "__index__", "__source__"}
        assert batch["i"] == batch["__index__"]
        assert len(set(batch["noise"])) == 8
        had += np.bincount(batch["__source__"], minlength=2)
        assert abs(had - 8 * number * np.array([1 / 3, 2 / 3])).max() < 1
        for source, i, tokens in zip(batch["__source__"], batch["i"], batch["tokens"], strict=True):
            wanted = list(range(i % 5)) if source == 0 else [i] * (i % 4)
            assert tokens[: len(wanted)] == wanted
            seen.append((source, i))
    times = [sum(i == one for source, i in seen if source == 1) for one in range(ROWS)]
    assert {one for one, number in enumerate(times) if not number} == {50}
    assert set(times) == {0, 2, 3}


@pytest.mark.parametrize(
    "options", [{"until": "all"}, {"until": 50, "stratified": False}], ids=["shares", "free"]
)
def test_every_step_can_be_resumed_elsewhere(
    folder: Path, pool_of_1: ri.Pool, pool_of_3: ri.Pool, options: dict[str, Any]
) -> None:
    """From the state after every step, on other ranks and workers, the rest of two epochs is the
    same.
    """
    data = mixed(folder, **options).batch(12)
    reference, _ = run(data, epochs=2)
    assert run(data, 2, epochs=2, pool=pool_of_1)[0] == reference
    assert run(data, 4, epochs=2, pool=pool_of_3)[0] == reference
    with data.loader(workers=0) as loader:
        steps = len(loader)
        states = [loader.state_dict() for _ in range(2) for _ in loader]
    assert len(states) == len(reference)
    assert len(json.dumps(states[0])) < 1024
    for step, state in enumerate(states[:-1], 1):
        assert (
            run(data, (1, 2, 4)[step % 3], state=state, epochs=1 if step >= steps else 2)[0]
            == reference[step:]
        )
    assert run(data, 2, state=states[2], epochs=2, pool=pool_of_3)[0] == reference[3:]


def test_whole_columns_are_mixed_as_samples_are(tmp_path: Path, pool_of_1: ri.Pool) -> None:
    """Token rows of two sources that no stage touches, with the smallest `max_bytes`."""
    for name, first in (("a", 0), ("b", 1000)):
        tokens = pa.FixedSizeListArray.from_arrays(
            pa.array(np.arange(first, first + 400, dtype=np.int32)), 8
        )
        pq.write_table(pa.table({"tokens": tokens}), tmp_path / f"{name}.parquet", row_group_size=7)
    data = (
        ri.mix({name: ri.read_parquet(str(tmp_path / f"{name}.parquet")) for name in "ab"})
        .shuffle(seed=1)
        .batch(10)
    )
    reference = run(data)[0]
    assert run(data, pool=pool_of_1)[0] == reference
    assert batches(data)[0]["tokens"][0][0] % 8 == 0


def test_weights_change_at_their_steps(folder: Path) -> None:
    """Batches of one source, then of the other, then of both, counted through epochs."""
    weights = {0: {"web": 1, "code": 0}, 2: {"web": 0, "code": 1}, 7: {"web": 1, "code": 3}}
    sources = [
        batch["__source__"] for batch in batches(mixed(folder, weights=weights, until=40), epochs=3)
    ]
    assert [sum(source) for source in sources] == [0] * 2 + [8] * 5 + [6] * 8


def test_mixtures_of_mixtures_have_their_own_shares(folder: Path, pool_of_1: ri.Pool) -> None:
    """A path of names leads to a source; the same on Ray."""
    inner = ri.mix(
        {"web": web(folder), "code": code(folder)}, weights={"web": 3, "code": 1}, until=100
    )
    data = ri.mix(
        {"all": inner, "more": web(folder).take(20)}, weights={"all": 4, "more": 1}, until="all"
    )
    data = data.map(noisy).shuffle(seed=3).batch(20)
    assert data.names == ("all/web", "all/code", "more")
    assert {tuple(np.bincount(batch["__source__"])) for batch in batches(data)} == {(12, 4, 4)}
    assert run(data, 2, pool=pool_of_1)[0] == run(data)[0]


def test_without_a_shuffle_sources_are_in_file_order(folder: Path) -> None:
    """A source with its own shuffle is shuffled alone."""
    data = ri.mix(
        {"web": web(folder).shuffle(seed=1), "code": code(folder)}, {"web": 1, "code": 1}
    ).batch(10)
    rows = [row for b in batches(data) for row in zip(b["__source__"], b["__index__"], strict=True)]
    by_source = [[i for source, i in rows if source == one] for one in (0, 1)]
    assert by_source[1] == [i for i in range(61) if i != 50][: len(by_source[1])]
    assert by_source[0] != sorted(by_source[0])
    assert len(set(by_source[0])) == len(by_source[0]) == 55


def test_a_replacement_is_of_the_same_source(
    folder: Path, pool_of_1: ri.Pool, tmp_path: Path
) -> None:
    """So the shares stay exact; the same on Ray."""
    data = (
        ri.mix({"web": web(folder).map(no_seven), "code": code(folder)}, {"web": 1, "code": 2})
        .shuffle(seed=2)
        .batch(6)
    )
    options = {"on_error": "skip", "quarantine": tmp_path}
    reference = run(data, **options)[0]
    assert run(data, pool=pool_of_1, **options)[0] == reference
    (bad,) = [batch for batch in batches(data, **options) if not all(batch["__valid__"])]
    assert sum(bad["__source__"]) == 4
    assert bad["__source__"][bad["__valid__"].index(False)] == 0


def no_seven(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["i"] == 7:
        raise ValueError("seven")
    return sample


@pytest.mark.parametrize("partial", ["pad", "short"])
def test_an_epoch_may_end_with_part_of_a_batch(folder: Path, partial: str) -> None:
    """The next epoch continues after it."""
    data = mixed(folder, until=20).batch(8, partial=partial)
    found = batches(data, epochs=2)
    assert [len(batch["i"]) for batch in found] == [8, 8, 8 if partial == "pad" else 4] * 2
    valid = [sum(batch.get("__valid__", [True] * len(batch["i"]))) for batch in found]
    assert valid == [8, 8, 4] * 2


def changed(data: Dataset, **how: Any) -> Dataset:
    return data.map(lambda sample: {**sample, **how})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda data: data.select(i="i"),
            "'web' has field 'tokens', 'code' does not; .select",
        ),
        (
            lambda data: changed(data, b=1),
            "'code' has field 'b', 'web' does not",
        ),
        (
            lambda data: changed(data, i=0.5),
            "'i' is float64 in source 'code', and int64 in source 'web'",
        ),
        (
            lambda data: changed(data, i=np.zeros((2, 2))),
            r"'i' is an array of float64 \(2, 2\) in source 'code'",
        ),
        (
            lambda data: changed(data, tokens="a"),
            "'tokens' is no number or array of numbers in source 'code'",
        ),
        (lambda data: data.select(i="j"), "source 'code': .*'j'"),
    ],
)
def test_sources_must_give_the_same_fields(folder: Path, change: Any, said: str) -> None:
    """The error names source and field."""
    with pytest.raises(ri.ConfigError, match=said):
        run(ri.mix({"web": web(folder), "code": change(code(folder))}).batch(4))


def test_states_identify_their_sources(folder: Path) -> None:
    """Other weights, another source, or another order of one is refused."""
    data = mixed(folder)
    _, state = run(data, steps=2)
    others = [mixed(folder, weights={"web": 1, "code": 3}), mixed(folder, until="all")]
    others += [
        ri.mix(
            {"web": web(folder).shuffle(seed=9), "code": code(folder)}, {"web": 1, "code": 2}
        ).shuffle(seed=3, window=40)
    ]
    for other in others:
        with pytest.raises(
            ri.StateError, match="mixture: the state has 'web 1, code 2, until first; sources"
        ):
            run(other.batch(8), state=state)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sources": {}}, "sources={}: it is empty"),
        ({"sources": {"a": 3}}, "'a' is a int; data sets by name"),
        ({"sources": {"a/b": web}}, "'a/b' is not a name"),
        (
            {"sources": {"a": lambda f: web(f).batch(3)}},
            "batch cannot be used in a source of mix; call batch on the mixture; the source is 'a'",
        ),
        (
            {"sources": {"a": lambda f: web(f).epoch(passes=2)}},
            "epoch cannot be used in a source of mix; .*'a'",
        ),
        (
            {"sources": {"a": lambda f: web(f).pack(4)}},
            "pack cannot be used in a source of mix; .*'a'",
        ),
        (
            {"sources": {"a": lambda f: ri.stream(lambda name, offset: iter(()))}},
            "a stream has no end: stream cannot be used in a source of mix; .*'a'",
        ),
        (
            {"sources": {"a": lambda f: ri.from_torch([1, 2], sampler=[1, 0])}},
            r"from_torch\(sampler=...\) cannot be used in a source of mix; .*'a'",
        ),
        (
            {"sources": {"a": lambda f: ri.mix({"b": web(f)}, {0: {"b": 1}, 3: {"b": 2}})}},
            "only the outermost mixture knows the step: .*; the source is 'a'",
        ),
        ({"weights": {"web": 1}}, "the weight of 'code' is missing; give 0"),
        (
            {"weights": {"web": 1, "code": 1, "text": 1}},
            "'text' has a weight and is not a source; the sources are web, code",
        ),
        ({"weights": {"web": 1, "code": 0}}, "the weight of 'code' is always 0"),
        ({"weights": {"web": -1, "code": 1}}, "-1 for 'web' is not a number"),
        ({"weights": {3: {"web": 1, "code": 1}}}, "the weights from step 0 on are missing"),
        ({"weights": {0: {"web": 0, "code": 0}}}, "all weights are 0 from step 0 on"),
        ({"until": "last"}, "until='last': 'first', 'all', or a number"),
        ({"until": 0}, "until=0: 'first'"),
    ],
)
def test_wrong_sources_and_weights_are_refused(
    folder: Path, given: dict[str, Any], said: str
) -> None:
    """In one line that names the value."""
    sources = given.pop("sources", {"web": web, "code": code})
    with pytest.raises(ri.ConfigError, match=said):
        ri.mix(
            {name: make(folder) if callable(make) else make for name, make in sources.items()},
            **given,
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda data: data.where("i > 3"),
            "where cannot be used with mix; call the verb on each source, before mix",
        ),
        (lambda data: data.take(3), "take cannot be used with mix"),
        (lambda data: data.split(0.5, 0.5), "split cannot be used with mix"),
        (lambda data: data.pack(8), "a mixture decides .*: pack cannot be used with mix"),
        (lambda data: data.length("i"), "length cannot be used with mix"),
        (
            lambda data: data.epoch(passes=2),
            r"until of mix decides .*: epoch cannot be used with mix",
        ),
        (
            lambda data: data.batch(4, bucketed=True),
            r"batch\(bucketed=True\) cannot be used with mix",
        ),
        (lambda data: data.batch(max_tokens=4), r"batch\(max_tokens=...\) cannot be used with mix"),
        (
            lambda data: data.shuffle(seed=1, lanes=2),
            r"shuffle\(lanes=...\) cannot be used with mix",
        ),
        (
            lambda data: data.to_ray(),
            "a Ray Dataset is made of one source: to_ray cannot be used with mix",
        ),
        (lambda data: data.batch(4).loader(workers=0), r"stratified=False\) needs .shuffle\(\)"),
        (
            lambda data: data.batch(500).shuffle(seed=1).loader(workers=0),
            "less than one global batch of 500",
        ),
    ],
)
def test_verbs_of_single_sources_are_refused(folder: Path, change: Any, said: str) -> None:
    """In one line that names the verb and says where it belongs."""
    with pytest.raises(ri.ConfigError, match=said):
        change(ri.mix({"web": web(folder), "code": code(folder)}, stratified=False))


def test_mixtures_that_never_end_are_refused(folder: Path) -> None:
    """So are partial steps where weights change at steps."""
    weights = {0: {"web": 1, "code": 1}, 3: {"web": 1, "code": 0}}
    with pytest.raises(
        ri.ConfigError, match="never end: until='all' of a mixture of web, code is never reached"
    ):
        mixed(folder, weights=weights, until="all").loader(workers=0)
    with pytest.raises(
        ri.ConfigError, match=r"weights that change .*with batch\(partial='pad' or 'short'\)"
    ):
        mixed(folder, weights=weights).batch(8, partial="pad").loader(workers=0)
