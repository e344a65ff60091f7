"""Map-style PyTorch datasets: the batches that torch's DataLoader gives, and the promises of any
other data.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import rayingest as ri
from tests.support.streams import run

N = 103


class Pairs:
    """(a tensor, its label), as in torchvision's datasets."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.arange(6, dtype=torch.float32).reshape(2, 3) * i, i % 10


class Noise:
    """Dictionaries of numbers from the global random states."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> dict[str, float]:
        return {
            "i": i,
            "python": random.random(),
            "numpy": np.random.random(),
            "torch": torch.rand(()).item(),
        }


class Together(Pairs):
    """Any number of items at a time."""

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, int]]:
        return [self[i] for i in indices]


class NoisyTogether(Noise):
    """Random numbers that would depend on the items fetched together."""

    def __getitems__(self, indices: list[int]) -> list[dict[str, float]]:
        return [self[i] for i in indices]


class Odd(Sampler[int]):
    """A user's sampler: other odd indices in every epoch."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(5)

    def __iter__(self) -> Iterator[int]:
        return iter((self.rng.permutation(N // 2) * 2 + 1).tolist())

    def __len__(self) -> int:
        return N // 2


def set_global_seeds() -> None:
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(17)


SAMPLERS: dict[str, Callable[[Any], Any]] = {
    "sequential": SequentialSampler,
    "random": lambda data: RandomSampler(data, generator=generator()),
    "weighted": lambda data: WeightedRandomSampler(
        torch.arange(1, N + 1).float(), 2 * N, generator=generator()
    ),
    "subset": lambda data: SubsetRandomSampler(range(5, 77), generator=generator()),
    "custom": lambda data: Odd(),
}


def batches(dataset: Any, epochs: int = 1, **options: Any) -> list[list[Any]]:
    with dataset.loader(workers=0, **options) as loader:
        return [[batch["0"], batch["1"]] for _ in range(epochs) for batch in loader]


def same(ours: list[list[Any]], theirs: list[list[Any]]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert all(
            torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(mine, other, strict=True)
        )


@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_give_the_data_loaders_batches(name: str, drop: bool) -> None:
    """Three epochs are equal, with and without a short batch; the user's sampler is unchanged."""
    data = Pairs()
    mine = SAMPLERS[name](data)
    ours = ri.from_torch(data, sampler=mine).batch(8, partial="drop" if drop else "short")
    theirs = DataLoader(data, batch_size=8, sampler=SAMPLERS[name](data), drop_last=drop)
    same(batches(ours, 3), [batch for _ in range(3) for batch in theirs])
    assert list(mine) == list(SAMPLERS[name](data))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_generator_that_loader_and_sampler_share_gives_the_data_loaders_batches(
    workers: int,
) -> None:
    """The draw of the workers' seed is repeated; the user's generator stays as it was."""
    data, mine, other = Pairs(), generator(), generator()
    theirs = DataLoader(data, batch_size=8, shuffle=True, generator=other, num_workers=workers)
    expected = [batch for _ in range(3) for batch in theirs]
    ours = ri.from_torch(data, sampler=RandomSampler(data, generator=mine), generator=mine)
    same(batches(ours.batch(8, partial="short"), 3), expected)
    assert torch.equal(mine.get_state(), generator().get_state())
    in_batches = BatchSampler(RandomSampler(data, generator=mine), 8, False)
    same(batches(ri.from_torch(data, batch_sampler=in_batches, generator=mine), 3), expected)


@pytest.mark.parametrize("partial", ["drop", "short"])
def test_distributed_samplers_give_each_rank_its_own(partial: str) -> None:
    """Every rank's batches are those of a DataLoader with that rank's sampler, in every epoch."""
    data = Pairs()
    for rank in range(3):
        sampler = DistributedSampler(
            data, num_replicas=3, rank=rank, seed=4, drop_last=partial == "drop"
        )
        theirs = DataLoader(data, batch_size=5, sampler=sampler, drop_last=partial == "drop")
        expected = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            expected += list(theirs)
        ours = ri.from_torch(data, sampler=sampler).batch(15, partial=partial)
        same(batches(ours, 2, rank=rank, world_size=3), expected)


def test_batch_samplers_give_batches_of_any_size() -> None:
    """PyTorch's and a list of lists work; two ranks share each batch."""
    data = Pairs()
    made = [BatchSampler(RandomSampler(data, generator=generator()), 10, False) for _ in range(2)]
    theirs = DataLoader(data, batch_sampler=made[1])
    same(batches(ri.from_torch(data, batch_sampler=made[0]), 2), [*theirs, *theirs])
    lists = [[3, 1, 4], [1], [5, 9, 2, 6, 5]]
    ours = ri.from_torch(data, batch_sampler=lists)
    same(batches(ours), list(DataLoader(data, batch_sampler=lists)))
    halves = [batches(ours, rank=rank, world_size=2, uneven=True) for rank in range(2)]
    joined = [
        [torch.cat(both) for both in zip(*parts, strict=True)]
        for parts in zip(*halves, strict=True)
    ]
    same(joined, list(DataLoader(data, batch_sampler=lists)))


def test_collate_fn_gets_a_ranks_items() -> None:
    """Its result is the batch, its parts are fields."""

    def stack(items: list[Any]) -> dict[str, Any]:
        return {
            "x": torch.stack([x for x, _ in items]),
            "meta": {"y": torch.tensor([y for _, y in items])},
        }

    with ri.from_torch(Pairs(), collate_fn=stack).batch(8).loader(workers=0) as loader:
        batch = next(iter(loader))
    theirs = next(iter(DataLoader(Pairs(), 8, collate_fn=stack)))
    assert torch.equal(batch["x"], theirs["x"])
    assert torch.equal(batch["meta.y"], theirs["meta"]["y"])


def test_items_fetched_together_are_the_same() -> None:
    """`__getitems__` gives the same items, also if it draws random numbers."""
    same(batches(ri.from_torch(Together()).batch(8)), batches(ri.from_torch(Pairs()).batch(8)))
    shuffled = [
        ri.from_torch(data).shuffle(seed=2) for data in (NoisyTogether(), NoisyTogether(), Noise())
    ]
    by_four, by_ten, alone = (
        sorted(row for step in run(data.batch(size))[0] for row in step)
        for data, size in zip(shuffled, (4, 10, 10), strict=True)
    )
    assert by_four == by_ten
    assert len(alone) == 40


def test_random_numbers_differ_by_sample_and_epoch_and_repeat_by_run() -> None:
    """Python's, NumPy's and PyTorch's do; the caller's global states stay as they were."""

    def epochs() -> list[np.ndarray]:
        with ri.from_torch(Noise()).shuffle(seed=1).batch(40).loader(workers=0) as loader:
            both = [next(iter(loader)) for _ in range(2)]
        rows = [
            np.stack([b[name].numpy() for name in ("i", "python", "numpy", "torch")], 1)
            for b in both
        ]
        return [row[np.argsort(row[:, 0])][:, 1:] for row in rows]

    set_global_seeds()
    untouched = [random.random(), np.random.random(), torch.rand(()).item()]
    set_global_seeds()
    first, second = epochs()
    assert [random.random(), np.random.random(), torch.rand(()).item()] == untouched
    for column in range(3):
        assert len({*first[:, column], *second[:, column]}) == 80
    again = epochs()
    assert np.array_equal(first, again[0])
    assert np.array_equal(second, again[1])


def test_a_sample_that_a_sampler_repeats_draws_other_numbers() -> None:
    """It does so inside one epoch too."""
    with ri.from_torch(Noise(), sampler=[3, 3, 7, 3]).batch(4).loader(workers=0) as loader:
        batch = next(iter(loader))
    assert batch["__index__"].tolist() == batch["i"].tolist() == [3, 3, 7, 3]
    assert len(set(batch["torch"].tolist())) == 4


@pytest.mark.parametrize("name", ["weighted", "custom"])
def test_a_sampled_run_is_resumed_on_other_ranks(name: str) -> None:
    """It resumes in the second epoch, on two ranks; a state of another sampler is refused."""
    data = Pairs()
    ours = ri.from_torch(data, sampler=SAMPLERS[name](data)).batch(10)
    steps, _ = run(ours, epochs=2)
    per_epoch = len(steps) // 2
    _, state = run(ours, epochs=2, steps=per_epoch + 3)
    again, _ = run(ours, 2, state=state)
    assert again == steps[per_epoch + 3 :]
    with pytest.raises(ri.StateError, match="sampler: the state has"):
        run(ri.from_torch(data, sampler=list(SAMPLERS[name](data))[::-1]).batch(10), state=state)


def test_epochs_of_another_length_go_on_with_what_the_sampler_draws_next() -> None:
    """Epochs may be two passes or a part of one; both resume in the second epoch."""
    data = Pairs()
    sampled = ri.from_torch(data, sampler=SAMPLERS["custom"](data)).batch(10)
    listed = ri.from_torch(data, batch_sampler=BatchSampler(SAMPLERS["random"](data), 10, False))
    for ours in (sampled, listed):
        steps, _ = run(ours, epochs=4)
        assert run(ours.epoch(passes=2), epochs=2)[0] == steps
    steps, _ = run(sampled, epochs=3)
    short = sampled.epoch(samples=60)
    assert run(short, epochs=2)[0] == steps[:12]
    _, state = run(short, epochs=2, steps=8)
    assert run(short, 2, state=state)[0] == steps[8:12]


def test_parts_of_a_dataset_are_taken_where_there_is_no_sampler() -> None:
    """`take`, `skip` and `split` work, shuffled or not."""
    data = ri.from_torch(Pairs())
    assert [i for step in run(data.skip(3).take(8).batch(4))[0] for i, _ in step] == list(
        range(3, 11)
    )
    parts = [
        run(part.shuffle(seed=1).batch(4, partial="short"))[0] for part in data.split(0.5, 0.5)
    ]
    assert sorted(i for steps in parts for step in steps for i, _ in step) == list(range(N))


class Labelled:
    """Items with fixed fields, and with one that the dataset draws."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> dict[str, Any]:
        tokens = [self.offset + i] * (1 + i % 5)
        return {"i": i, "label": (self.offset + i) % 4, "tokens": tokens, "noise": random.random()}


class LabelledTogether(Labelled):
    """The same by `__getitems__`."""

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [self[i] for i in indices]


def is_small(sample: dict[str, Any]) -> bool:
    return bool(sample["i"] < 8)


@pytest.mark.parametrize(
    "dataset", [Labelled(), LabelledTogether()], ids=lambda one: type(one).__name__
)
def test_items_are_chosen_measured_and_weighed(dataset: Any) -> None:
    """By fields that are the same in every epoch, though another field is random."""
    data = ri.from_torch(dataset)

    def batches(chosen: ri.Dataset, epochs: int = 2) -> list[dict[str, Any]]:
        with chosen.loader(workers=0, epochs=epochs) as loader:
            return [batch for _ in range(epochs) for batch in loader]

    def indices(chosen: ri.Dataset) -> list[int]:
        return [i for batch in batches(chosen, 1) for i in batch["i"].tolist()]

    assert indices(data.where("label == 3").batch(5)) == list(range(3, 40, 4))
    assert indices(data.filter(is_small).batch(4)) == list(range(8))
    budgeted = data.length("tokens").shuffle(seed=1).batch(max_tokens=16)
    assert sorted(indices(budgeted)) == list(range(40))
    weighted = data.weighted("label").shuffle(seed=1).batch(8)
    assert 0 not in {i % 4 for i in indices(weighted)}
    rows = [batch["tokens"] for batch in batches(data.pack(12).batch(2), 1)]
    tokens = [i for i in range(40) for _ in range(1 + i % 5)]
    assert torch.cat(rows).flatten().tolist() == tokens[: len(rows) * 24]


def test_a_choice_by_a_random_field_is_an_error() -> None:
    """It would differ from epoch to epoch; the error says so, and names an item."""
    data = ri.from_torch(Labelled())
    for chosen in (data.where("noise < 0.5"), data.weighted("noise").shuffle(seed=1)):
        with pytest.raises(ri.DataError, match=r"depends on random numbers of the item.*sample"):
            chosen.batch(4).loader(workers=0)


def test_measures_of_another_dataset_are_not_reused() -> None:
    """Two objects of one class and length may hold other items, so no file keeps their measures."""
    for offset, first in ((0, 3), (1, 2)):
        chosen = ri.from_torch(Labelled(offset)).where("label == 3").batch(2)
        with chosen.loader(workers=0) as loader:
            assert next(iter(loader))["i"].tolist() == [first, first + 4]


def test_a_choice_of_items_is_the_same_on_ray(pool_of_1: ri.Pool) -> None:
    """Tasks measure the items, and the batches are those without Ray."""
    chosen = ri.from_torch(Labelled()).where("label == 3").batch(5)
    assert run(chosen, pool=pool_of_1)[0] == run(chosen)[0]


class Grown:
    """Tensors that require gradients, as a field and in a list, computed from others."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> dict[str, Any]:
        grown = torch.full((2,), float(i), requires_grad=True) * 2
        return {"x": grown, "parts": [grown, {"y": grown}]}


def kept_apart(items: list[Any]) -> dict[str, Any]:
    return {
        "x": torch.stack([item["x"] for item in items]),
        "parts": [item["parts"] for item in items],
    }


def test_gradients_are_left_behind(pool_of_1: ri.Pool) -> None:
    """Batches carry none, in this process and on workers, with a collate function or without."""

    def first(data: Any, **how: Any) -> dict[str, Any]:
        with data.batch(4).loader(**how) as loader:
            batch: dict[str, Any] = next(iter(loader))
            return batch

    for data in (ri.from_torch(Grown()), ri.from_torch(Grown(), collate_fn=kept_apart)):
        for batch in (first(data, workers=0), first(data, pool=pool_of_1)):
            assert batch["x"].tolist() == [[2.0 * i] * 2 for i in range(4)]
            inside = [batch["x"], *(part for x, y in batch["parts"] for part in (x, y["y"]))]
            assert not any(tensor.requires_grad or tensor.grad_fn for tensor in inside)


def test_numbers_that_numpy_lacks_are_refused_and_their_bits_travel() -> None:
    """The error for bfloat16 names the way out, for items and for results of a collate function."""

    class Brief(Pairs):
        def __getitem__(self, i: int) -> Any:
            return torch.full((3,), i + 0.5, dtype=torch.bfloat16)

    said = r"numpy has no bfloat16: return it as .float\(\), or its bits as .view\(torch.int16\)"
    for error, options in ((ri.DataError, {}), (ri.ConfigError, {"collate_fn": torch.stack})):
        with pytest.raises(error, match=said):
            run(ri.from_torch(Brief(), **options).batch(4))
    bits = ri.from_torch(Brief()).map(lambda item: {"x": item["0"].view(torch.int16)}).batch(4)
    with bits.loader(workers=0, after_copy={"x": lambda bits: bits.view(torch.bfloat16)}) as loader:
        assert torch.equal(next(iter(loader))["x"], torch.stack([Brief()[i] for i in range(4)]))


def test_workers_give_the_same_batches(pool_of_3: ri.Pool) -> None:
    """So are random numbers, the sampler's order, and the error of an item."""
    ours = ri.from_torch(
        Noise(), sampler=WeightedRandomSampler([1.0] * 40, 80, generator=generator())
    ).batch(8)
    assert run(ours, epochs=2, pool=pool_of_3)[0] == run(ours, epochs=2)[0]
    with pytest.raises(ri.DataError, match=r"map Broken\[\.\.\.\]: ValueError: five .*sample 5"):
        run(ri.from_torch(Broken()).batch(4), pool=pool_of_3)


class Broken(Pairs):
    """One item raises an error."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        if i == 5:
            raise ValueError("five")
        return super().__getitem__(i)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ri.from_torch([]), "it is empty"),
        (lambda: ri.from_torch(iter([1])), "from_torch_iterable"),
        (lambda: ri.from_torch(Pairs(), sampler=iter([1])).batch(1), "only once"),
        (lambda: ri.from_torch(Pairs(), sampler=[1], batch_sampler=[[1]]), "leave one of them out"),
        (
            lambda: ri.from_torch(Pairs(), sampler=[1]).shuffle(),
            "the sampler decides which samples come",
        ),
        (
            lambda: ri.from_torch(Pairs(), sampler=[1]).take(1),
            r"the sampler decides .*: take cannot be used with from_torch\(sampler",
        ),
        (
            lambda: ri.from_torch(Pairs(), sampler=[1]).skip(1),
            r"the sampler decides .*: skip cannot be used with from_torch\(sampler",
        ),
        (
            lambda: ri.from_torch(Pairs(), sampler=[1]).split(0.5),
            r"the sampler decides .*: split cannot be used with from_torch\(sampler",
        ),
        (
            lambda: ri.from_torch(Pairs(), sampler=[1]).where("a > 1"),
            r"the sampler decides .*: where cannot be used with from_torch\(sampler",
        ),
        (
            lambda: ri.from_torch(Pairs(), sampler=[1]).filter(bool),
            r"the sampler decides .*: filter cannot be used with from_torch\(sampler",
        ),
        (
            lambda: ri.from_torch(Pairs(), sampler=[1]).batch(1, bucketed=True),
            "the sampler decides which samples come",
        ),
        (
            lambda: ri.from_torch(Pairs(), collate_fn=list).batch(1, pad={"a": ri.Pad()}),
            r"the collate_fn makes the batches: batch\(pad=...\) cannot be used with from_torch",
        ),
        (
            lambda: ri.from_torch(Pairs(), batch_sampler=[[1]]).batch(2),
            "the batch_sampler decides the batches",
        ),
        (
            lambda: batches(ri.from_torch(Pairs(), sampler=[N]).batch(1)),
            f"the data has indices from 0 to {N - 1}",
        ),
        (
            lambda: ri.from_torch(Pairs(), generator=generator()),
            r"from_torch\(generator=...\) has no sampler",
        ),
        (
            lambda: ri.from_torch(Pairs(), sampler=[1], generator=17),
            "generator=17: a torch.Generator",
        ),
        (
            lambda: batches(ri.from_torch(Pairs(), batch_sampler=[[1], []])),
            r"at least one in each, not \[\]",
        ),
        (
            lambda: batches(ri.from_torch(Pairs(), batch_sampler=[[1], None])),
            "lists of indices.*not None",
        ),
        (lambda: batches(ri.from_torch(Pairs(), sampler=["a"]).batch(1)), "must give indices"),
    ],
)
def test_mistakes_are_refused(make: Callable[[], Any], said: str) -> None:
    """The call or the loader refuses them."""
    with pytest.raises(ri.ConfigError, match=said):
        make()


class Ragged:
    """Arrays of `length(i)` numbers."""

    def __init__(self, length: Callable[[int], int]) -> None:
        self.length = length

    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"tokens": torch.arange(self.length(i)), "label": i}


def ragged_stream(length: Callable[[int], int], iterable: bool) -> ri.Dataset:
    data = Ragged(length)
    if iterable:
        return ri.from_torch_iterable(lambda shard: (data[i] for i in range(24)), shards=1)
    return ri.from_torch(data)


def loaded(dataset: ri.Dataset) -> list[dict[str, Any]]:
    with dataset.loader(workers=0, epochs=1) as loader:
        return list(loader)


@pytest.mark.parametrize("iterable", [False, True])
def test_arrays_of_different_lengths_are_padded(iterable):
    """As from any other source: zeros at the end, and the lengths in a column of their own."""
    (first, *_) = loaded(ragged_stream(lambda i: i % 5 + 1, iterable).batch(6))
    assert first["tokens"].shape == (6, 5)
    assert first["tokens_length"].tolist() == [1, 2, 3, 4, 5, 1]
    assert first["tokens"][1].tolist() == [0, 1, 0, 0, 0]


@pytest.mark.parametrize("iterable", [False, True])
def test_pad_makes_arrays_padded_whose_first_lengths_agree(iterable):
    """Without `pad` they have no lengths, and a longer array is an error that names `ri.Pad`."""

    def length(i: int) -> int:
        return 4 if i < 20 else 7

    stream = ragged_stream(length, iterable)
    (first, *_) = loaded(stream.take(12).batch(6))
    assert "tokens_length" not in first
    with pytest.raises(ri.DataError, match=r"\.batch\(pad=\{'tokens': ri\.Pad\(\)\}\)"):
        loaded(stream.batch(6))
    *_, last = loaded(stream.batch(6, pad={"tokens": ri.Pad(value=-1)}))
    assert last["tokens_length"].tolist() == [4, 4, 7, 7, 7, 7]
    assert last["tokens"][0].tolist() == [0, 1, 2, 3, -1, -1, -1]


@pytest.mark.parametrize("empty", [[], np.zeros(0, np.int64)])
def test_empty_values_promise_no_length(empty):
    """A field of empty lists or arrays in the first samples is padded."""

    class Boxes:
        def __len__(self) -> int:
            return 12

        def __getitem__(self, i: int) -> dict[str, Any]:
            return {"ids": empty if i < 9 else np.array([7, 8])}

    first, last = loaded(ri.from_torch(Boxes()).batch(6))
    assert first["ids_length"].tolist() == [0] * 6
    assert last["ids_length"].tolist() == [0, 0, 0, 2, 2, 2]


class Offset(torch.utils.data.Dataset):
    """Items that `worker_init_fn` prepares, as torch's documentation advises."""

    offset = 0

    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> dict[str, int]:
        info = torch.utils.data.get_worker_info()
        assert info.dataset is self
        seed = info.seed % 2**32
        return {"x": self.offset + i, "id": info.id, "of": info.num_workers, "seed": seed}


def set_offset(number: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info.id == number < info.num_workers
    info.dataset.offset = 100


def test_get_worker_info_names_worker_and_dataset(pool_of_3: ri.Pool) -> None:
    """Ids below the number of workers; the seed is the item's, equal wherever it is made."""
    seeds = []
    for options, workers in (({"workers": 0}, 1), ({"pool": pool_of_3}, 3)):
        data = ri.from_torch(Offset(), worker_init_fn=set_offset).batch(4)
        with data.loader(epochs=1, **options) as loader:
            batches = list(loader)
        assert [x for batch in batches for x in batch["x"].tolist()] == [*range(100, 124)]
        assert {of for batch in batches for of in batch["of"].tolist()} == {workers}
        assert {i for batch in batches for i in batch["id"].tolist()} <= {*range(workers)}
        seeds.append([seed for batch in batches for seed in batch["seed"].tolist()])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 24
    assert torch.utils.data.get_worker_info() is None
