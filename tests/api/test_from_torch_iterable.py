"""Samples that have to be iterated: in the order of any other data, by whichever way their blocks
are reached.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

import rayingest as ri
from rayingest.api.data import description_of
from rayingest.api.dataset import Dataset
from tests.support.iterables import LENGTHS, iterable, samples
from tests.support.streams import flat, run

COUNT = sum(LENGTHS)


class Counted:
    """The samples of a shard, with a position; counts samples taken; `wrong`: error of the
    position.
    """

    asked = 0
    wrong = 0

    def __init__(self, shard: int) -> None:
        self.shard, self.at = shard, 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        while self.at < LENGTHS[self.shard]:
            self.at += 1
            type(self).asked += 1
            yield self.shard, self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"] + self.wrong


class OfTheIterator:
    """An iterable whose iterator has the position."""

    def __init__(self, shard: int) -> None:
        self.shard = shard

    def __iter__(self) -> Any:
        return _Iterator(Counted(self.shard))


class _Iterator:
    def __init__(self, counted: Counted) -> None:
        self.counted, self.samples = counted, iter(counted)
        self.state_dict, self.load_state_dict = counted.state_dict, counted.load_state_dict

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> tuple[int, int]:
        return next(self.samples)


class Divided(IterableDataset[int]):
    """Numbers that workers divide among themselves."""

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        assert worker is not None
        return iter(range(worker.id, COUNT, worker.num_workers))


def test_samples_are_those_of_plain_loops() -> None:
    """In file order shards follow each other; fields and types are those of PyTorch's collation."""
    with iterable().batch(COUNT).loader(workers=0) as loader:
        batch = next(iter(loader))
    expected = [(shard, n) for shard, length in enumerate(LENGTHS) for n in range(length)]
    assert list(zip(batch["at.0"].tolist(), batch["at.1"].tolist(), strict=True)) == expected
    assert torch.equal(
        batch["x"], torch.tensor([[n] * 3 for _, n in expected], dtype=torch.float32)
    )
    assert len({*batch["noise"].tolist()}) == len({*batch["t"][:, 0].tolist()}) == COUNT
    assert get_worker_info() is None


@pytest.mark.parametrize("block_bytes", [100, 600, 1 << 20])
def test_a_sample_is_the_same_however_it_is_reached(block_bytes: int) -> None:
    """Shuffled, resumed, on two ranks: samples and random numbers are those of one plain pass."""
    plain = sorted(flat(run(iterable().batch(COUNT))[0]))
    mixed = iterable(block_bytes=block_bytes).shuffle(seed=4, window=20).batch(10)
    steps, state = run(mixed, epochs=2, steps=11)
    for epoch in (steps[:8], run(mixed, epochs=2)[0][8:]):
        assert {*flat(epoch)} <= {*plain}
        assert len({*flat(epoch)}) == 80
    assert run(mixed, 2, state=state)[0] == run(mixed, epochs=2)[0][11:]


@pytest.mark.parametrize("factory", [Counted, OfTheIterator])
def test_going_back_is_cheap_where_there_is_a_state_dict(
    factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks in reverse cost a pass, then a sample or two each; a wrong state costs a pass."""
    monkeypatch.setattr(Counted, "asked", 0)
    data = iterable(factory, block_bytes=16 * 10, lengths=LENGTHS).batch(10)
    source = description_of(data).source.options["source"]

    def backwards() -> int:
        Counted.asked = 0
        taken = [[*source.take(2, at, at + 10)] for at in (30, 20, 10, 0)]
        assert taken == [*reversed([[*source.take(2, at, at + 10)] for at in (0, 10, 20, 30)])]
        return Counted.asked

    assert backwards() <= 40 + 3 * 11 + 40
    assert backwards() <= 3 * 11 + 10 + 40
    monkeypatch.setattr(Counted, "wrong", 1)
    assert backwards() >= 40 + 30 + 20 + 10


def test_a_state_that_resumes_elsewhere_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream is the same, but slower."""
    mixed = iterable(Counted, block_bytes=40).shuffle(seed=1).batch(10)
    right, _ = run(mixed, epochs=2)
    monkeypatch.setattr(Counted, "wrong", 1)
    assert run(iterable(Counted, block_bytes=40).shuffle(seed=1).batch(10), epochs=2)[0] == right


def test_a_dataset_is_divided_among_shards() -> None:
    """Each shard is a copy that sees itself as a worker of PyTorch."""
    with (
        ri.from_torch_iterable(Divided(), shards=3)
        .shuffle(seed=1)
        .batch(COUNT)
        .loader(workers=0) as loader
    ):
        assert sorted(next(iter(loader))["0"].tolist()) == [*range(COUNT)]


def test_a_function_divides_by_itself() -> None:
    """Its iterables see no worker, so they are not divided again."""
    workers: list[Any] = []

    def alone(shard: int) -> Iterator[int]:
        workers.append(get_worker_info())
        yield shard

    run(ri.from_torch_iterable(alone, shards=3).batch(3))
    assert {*workers} == {None}


def test_lengths_that_promise_too_much_are_named() -> None:
    """The error says so: the data did not change, and nothing was counted."""
    data = ri.from_torch_iterable(lambda shard: range(7), shards=2, lengths=[7, 9])
    with (
        data.batch(4).loader(workers=0, epochs=1) as loader,
        pytest.raises(
            ri.DataError,
            match=r"lengths gives 9 samples, the iterable ends before sample 7.*/1, off",
        ),
    ):
        list(loader)


def test_lengths_that_are_given_are_not_counted() -> None:
    """They also cut a shard that does not end."""
    data = ri.from_torch_iterable(
        lambda shard: itertools.count(1000 * shard), shards=2, lengths=[5, 3]
    )
    with data.batch(8).loader(workers=0) as loader:
        assert next(iter(loader))["0"].tolist() == [0, 1, 2, 3, 4, 1000, 1001, 1002]


@pytest.mark.parametrize("change", [-1, 1])
def test_data_that_has_changed_is_noticed(change: int, tmp_path: Path) -> None:
    """Fewer or more samples than counted are an error, until they are counted again."""
    count = (
        tmp_path / "count"
    )  # a file: a change of the code itself, or of its globals, is known without a version
    count.write_text("24")

    def data(version: str) -> Dataset:
        return ri.from_torch_iterable(
            lambda shard: range(int(count.read_text())), shards=2, version=version
        )

    run(data("before").batch(10))
    count.write_text(str(24 + change))
    with pytest.raises(
        ri.DataError, match=r"changed since it was indexed.*count again \[shard .*/0"
    ):
        run(data("before").batch(10, partial="short"))
    with data("after").batch(2 * (24 + change)).loader(workers=0) as loader:
        assert len(loader) == 1


def broken(shard: int) -> Iterator[int]:
    yield from range(7)
    raise RuntimeError("no more")


def test_errors_name_shard_and_sample() -> None:
    """Errors of the iterable do, and those of later stages."""
    with pytest.raises(
        ri.DataError,
        match=r"iterating broken: RuntimeError: no more .*broken.* \[shard broken/0, offset 7",
    ):
        run(ri.from_torch_iterable(broken, shards=1).batch(1))

    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        return {"x": 1 / (sample["at.1"] - 5)}

    with pytest.raises(ri.DataError, match=r"map .*fail.*shard samples/0, offset 5, sample 5"):
        run(iterable().map(fail).batch(10))


def test_a_value_that_cannot_be_pickled_is_named() -> None:
    """The error names field and sample, whatever pickling raises."""

    def locked(shard: int) -> list[dict[str, Any]]:
        return [{"made": 0}, {"made": threading.Lock()}]

    def called(shard: int) -> list[dict[str, Any]]:
        return [{"made": 0}, {"made": lambda: 1}]

    for factory, kind in ((locked, "lock"), (called, "function")):
        said = f"field 'made' is a {kind}, which cannot be pickled.*make it in .map.*/0, offset 1"
        with pytest.raises(ri.DataError, match=said):
            run(ri.from_torch_iterable(factory, shards=1).batch(2))


def test_it_can_be_filtered_and_cut_as_any_data() -> None:
    """`where`, `take` and `skip` work."""
    with iterable().where("noise >= 0").skip(12).take(3).batch(3).loader(workers=0) as loader:
        assert next(iter(loader))["at.0"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ri.from_torch_iterable(3, shards=1), "factory=3: a function of a shard's number"),
        (lambda: ri.from_torch_iterable(iter([1]), shards=1), "only once"),
        (
            lambda: ri.from_torch_iterable(samples, shards=2, lengths=[1]),
            "lengths has 1 numbers for 2 shards",
        ),
        (
            lambda: ri.from_torch_iterable(samples, shards=1, lengths=["a"]),
            "a list of the number of samples of each shard",
        ),
        (
            lambda: run(ri.from_torch_iterable(lambda i: i, shards=1).batch(1)),
            "returned a int for shard 0, which is not iterable",
        ),
        (lambda: run(ri.from_torch_iterable(lambda i: [], shards=1).batch(1)), "no sample"),
    ],
)
def test_mistakes_are_refused(make: Callable[[], Any], said: str) -> None:
    """The call or the loader refuses them."""
    with pytest.raises(ri.ConfigError, match=said):
        make()
