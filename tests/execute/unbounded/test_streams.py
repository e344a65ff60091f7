"""Streams without end: their order, their states, and their errors."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rayingest as ri
from tests.support.records import Counts, Pair, counts, follow, in_turn, numbers
from tests.support.streams import flat


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    batch=st.sampled_from([1, 2, 4, 6]),
    stop=st.integers(0, 12),
    world_sizes=st.tuples(st.sampled_from([1, 2]), st.sampled_from([1, 2])),
)
def test_a_state_resumes_exactly_where_it_was_taken(
    lengths: Any, batch: int, stop: int, world_sizes: Any
) -> None:
    """After any batch, on any number of ranks: the same rows, random numbers and final state."""
    data = counts(lengths, batch)
    before, after = (min(world_size, batch) for world_size in world_sizes)
    whole, end = follow(data)
    assert len(whole) == sum(lengths) // batch
    stop = min(stop, len(whole))
    first, state = follow(data, before, steps=stop)
    rest, again = follow(data, after, state=state)
    assert first + rest == whole
    assert again == end


def test_the_order_is_one_of_each_in_turn() -> None:
    """Partitions that have ended are left out.

    The rest of a batch comes when there is more, and the next `for` continues there.
    """
    lengths = [3, 7, 0, 4]
    with counts(lengths, 4).loader(workers=0) as loader:
        seen = [record for batch in loader for record in numbers(batch)]
        assert seen == in_turn(lengths)[:12]
        assert [*loader] == []
        lengths[1] += 3
        assert [numbers(batch) for batch in loader] == [[(1, 5), (1, 6), (1, 7), (1, 8)]]
        assert loader.state_dict()["offsets"] == {"0": [3], "1": [9], "2": None, "3": [4]}
        with pytest.raises(TypeError, match="no len"):
            len(loader)


def test_states_are_json_of_the_offsets() -> None:
    """With the schema, because the first records may be gone when the state is loaded."""

    def numbered(name: str, offset: int | None) -> Iterator[Pair]:
        for i in itertools.count(offset or 0):
            yield {"x": 0.5 if not offset and i == 0 else i, "name": name}, i + 1

    data = ri.stream(numbered, partitions=["a", "b"]).batch(3)
    _, state = follow(data, steps=2)
    assert state["offsets"] == {"a": 3, "b": 3}
    assert (state["step"], state["turn"]) == (2, "a")
    assert len(json.dumps(state)) < 400
    with data.loader(workers=0) as loader:
        loader.load_state_dict(json.loads(json.dumps(state)))
        batch = next(iter(loader))
    assert batch["x"].tolist() == [3, 3, 4]
    assert str(batch["x"].dtype) == "torch.float64"
    assert batch["__index__"].tolist() == [6, 7, 8]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"order": {"kind": "stream", "batch": 4}}, "batch: the state has 4, this loader 2"),
        ({"offsets": {"0": 1}}, r"partitions: the state has \['0'\], this loader \['0', '1'\]"),
        ({"turn": "7"}, "partitions"),
        ({"step": -1}, "step -1 is not a position"),
        ({"order": None, "offsets": None}, "order: the state has None.*partitions"),
        ({"schema": [["z", "<i8", 0, False, None]]}, "has learned others"),
    ],
)
def test_a_state_of_another_stream_is_refused(changed: dict[str, Any], said: str) -> None:
    """The error names all differences, and the loader is unchanged."""
    with counts([9, 9], 2).loader(workers=0) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(ri.StateError, match=said):
            loader.load_state_dict({**loader.state_dict(), **changed})
        assert numbers(next(batches)) == [(0, 1), (1, 1)]


def test_changed_code_is_logged_and_the_schema_is_learned_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As far as a change can be seen."""
    _, state = follow(counts([9, 9], 2), steps=1)
    with ri.stream(Counts([9, 9]), partitions=2, seed=5).batch(2).loader(workers=0) as loader:
        loader.load_state_dict(state)
        assert "noise" not in next(iter(loader))
    assert "code has changed" in caplog.text


def raises(message: str) -> Callable[..., Iterator[Pair]]:
    """Return a source whose partition "b" raises an error at its record 3."""

    def broken(name: str, offset: int | None) -> Iterator[Pair]:
        yield from (({"x": i}, i + 1) for i in range(offset or 0, 3))
        if name == "b":
            raise RuntimeError(message)
        yield from (({"x": i}, i + 1) for i in range(3, 9))

    return broken


def test_a_source_that_raises_is_named_with_its_offset() -> None:
    """The batches before it arrive. The offset of a bad record is the one where it begins."""
    data = ri.stream(raises("no broker"), partitions=["a", "b"]).batch(2)
    with data.loader(workers=0, on_error="skip") as loader:
        batches = iter(loader)
        assert [next(batches)["x"].tolist() for _ in range(3)] == [[0, 0], [1, 1], [2, 2]]
        where = (
            r"reading .*broken: RuntimeError: no broker \(in .*\) \[shard .*broken/b, offset 3\]"
        )
        with pytest.raises(ri.DataError, match=where):
            next(batches)
        assert loader.step == 3
        with pytest.raises(ri.DataError, match=where):
            next(iter(loader))

    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        return {"x": 1 / (sample["i"] - 4)}

    with pytest.raises(
        ri.DataError, match=r"fail.*ZeroDivision.* \[shard Counts/1, offset \[4\], sample 8\]"
    ):
        follow(ri.stream(Counts([4, 9]), partitions=2).map(fail).batch(4))


def test_bad_records_are_replaced_with_on_error_skip() -> None:
    """By another record of the rank's own rows, flagged as not valid."""

    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["i"] == 12:
            raise ValueError("twelve")
        return sample

    data = ri.stream(Counts([32])).map(fail).batch(16)
    with data.loader(workers=0, on_error="skip") as loader:
        batch, clean = [*loader]
    assert batch["__valid__"].tolist() == [i != 12 for i in range(16)]
    assert int(batch["i"][12]) in {*range(16)} - {12}
    assert clean["__valid__"].all()


def test_none_is_no_record() -> None:
    """A source may give None while it has no record; it is then asked again."""

    def halting(name: int, offset: int | None) -> Iterator[Pair | None]:
        for i in range(offset or 0, 6):
            yield from (None, ({"x": i}, i + 1), None)

    with ri.stream(halting).batch(3).loader(workers=0) as loader:
        assert [batch["x"].tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: 3, r"returned a int; it must return an iterator of \(sample, offset\)"),
        (lambda: [3], r"partition 0 gave 3; its items must be pairs \(sample, offset\)"),
        (lambda: [({"x": 1}, 2, 3)], "must be pairs"),
        (lambda: [(1, {"x": 1})], "must be pairs"),
        (lambda: [({"x": 1}, None)], "must be pairs"),
        (
            lambda: [({"x": 1}, {1})],
            r"partition 0 gave the offset \{1\}, a set, which JSON cannot hold",
        ),
        (lambda: [({"x": 1}, float("nan"))], "the offset nan, a float"),
    ],
)
def test_wrong_results_of_open_at_are_refused(made: Callable[[], Any], said: str) -> None:
    """In one line that says what is needed."""
    with pytest.raises(ri.ConfigError, match=said):
        follow(ri.stream(lambda name, offset: made()).batch(1))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda data: data.shuffle(),
            "not known beforehand: shuffle cannot be used with stream; choose",
        ),
        (lambda data: data.where("i > 3"), "beforehand: where cannot be used with stream"),
        (lambda data: data.filter(bool), "beforehand: filter cannot be used with stream"),
        (lambda data: data.take(3), "beforehand: take cannot be used with stream"),
        (lambda data: data.skip(3), "beforehand: skip cannot be used with stream"),
        (lambda data: data.split(0.5, 0.5), "beforehand: split cannot be used with stream"),
        (lambda data: data.length("ragged"), "beforehand: length cannot be used with stream"),
        (lambda data: data.pack(8, "ragged"), "beforehand: pack cannot be used with stream"),
        (lambda data: data.epoch(samples=8), "beforehand: epoch cannot be used with stream"),
        (
            lambda data: data.batch(4, bucketed=True),
            "beforehand: .*bucketed=True. cannot be used with stream",
        ),
        (
            lambda data: data.batch(max_tokens=4),
            r"beforehand: .*max_tokens=...\) cannot be used with stream",
        ),
        (lambda data: data.weighted("i"), "beforehand: weighted cannot be used with stream"),
        (
            lambda data: data.batch(4, partial="pad").loader(workers=0),
            "the next pass: .*partial='pad' or 'short'.* cannot be used with stream",
        ),
        (lambda data: data.to_ray(), "a stream has no end, .*: to_ray cannot be used with stream"),
        (
            lambda data: data.batch(4).loader(workers=0, epochs=2),
            r"a stream is one epoch.*epochs=...\) cannot be used with stream",
        ),
        (
            lambda data: data.batch(4).loader(workers=0, rank=0, world_size=3),
            "does not divide over 3 ranks",
        ),
        (lambda data: ri.stream(3), "open_at=3"),
        (
            lambda data: ri.stream(Counts([]), partitions=0),
            "partitions=0: a number of partitions, 1 or more",
        ),
        (lambda data: ri.stream(Counts([]), partitions=["a", "a"]), "different names"),
        (lambda data: ri.stream(Counts([]), partitions="a"), "different names"),
    ],
)
def test_verbs_that_need_data_with_an_end_are_refused(
    make: Callable[[Any], Any], said: str
) -> None:
    """At once, in one line that names the verb."""
    with pytest.raises(ri.ConfigError, match=said):
        make(ri.stream(Counts([9])))


def test_collate_and_padding_work_as_for_other_data() -> None:
    """Also after a resume; the state has no schema if a collate function makes the batches."""
    padded = (
        ri.stream(Counts([9]))
        .select(ragged="ragged")
        .batch(3, pad={"ragged": ri.Pad(value=-1, multiple_of=4)})
    )
    _, state = follow(padded, steps=1)
    with padded.loader(workers=0) as loader:
        loader.load_state_dict(state)
        assert next(iter(loader))["ragged"].tolist() == [[-1] * 4, [0, -1, -1, -1], [0, 1, -1, -1]]
    collated = ri.stream(Counts([9])).batch(
        3, collate=lambda samples: {"i": [sample["i"] for sample in samples]}
    )
    steps, state = follow(collated, steps=1)
    assert state["schema"] is None
    assert len(flat(steps + follow(collated, state=state)[0])) == 9
