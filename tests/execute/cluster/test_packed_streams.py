"""Streams of packed rows: their contents, on Ray as in this process, resumed on other ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rayingest as ri
from rayingest.api.dataset import Dataset

SAMPLES, LENGTH, BATCH = 99, 16, 6

Row = tuple[Any, ...]


def tokens_of(ordinal: int) -> list[int]:
    """Return a sample's tokens: different for every sample, none to twelve."""
    return [100 * ordinal + place for place in range(ordinal * 7 % 13)]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> str:
    """JSON Lines with tokens, labels, and text that is not packed."""
    folder = tmp_path_factory.mktemp("lines")
    for part in range(3):
        samples = [
            {"tokens": tokens_of(i), "labels": [-t for t in tokens_of(i)], "text": "no" * i}
            for i in range(part * SAMPLES // 3, (part + 1) * SAMPLES // 3)
        ]
        (folder / f"{part}.jsonl").write_text(
            "".join(json.dumps(sample) + "\n" for sample in samples)
        )
    return str(folder)


def packed(
    lines: str,
    *,
    length: int = LENGTH,
    fields: str | Sequence[str] = ("tokens", "labels"),
    cut: bool = True,
    seed: int | None = 5,
    window: int = 60,
    then: Callable[[Dataset], Dataset] = lambda data: data,
    **batch: Any,
) -> Dataset:
    data = then(ri.read_json(lines, block_bytes=1000).pack(length, fields, cut=cut))
    data = data if seed is None else data.shuffle(seed=seed, window=window)
    return data.batch(BATCH, pad={"labels": ri.Pad(value=-100)}, **batch)


def rows(batch: dict[str, Any]) -> list[Row]:
    """Return each packed row: its columns, and its segments with their samples."""
    bounds, index = batch["cu_seqlens"].tolist(), batch["__index__"].tolist()
    assert {str(batch[name].dtype) for name in ("position_ids", "segment_ids", "cu_seqlens")} == {
        "torch.int32"
    }
    assert len(bounds) == len(index) + 1
    count = len(batch["tokens"])
    assert bounds[0] == 0
    assert bounds[-1] == count * LENGTH
    segments: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for begin, ordinal in zip(bounds, index, strict=False):
        segments[begin // LENGTH].append((begin % LENGTH, ordinal))
    columns = [batch[name].tolist() for name in ("tokens", "labels", "position_ids", "segment_ids")]
    valid = batch["__valid__"].tolist() if "__valid__" in batch else [True] * count
    return [tuple(map(repr, row)) for row in zip(*columns, segments, valid, strict=True)]


def run(
    data: Dataset,
    world_size: int = 1,
    *,
    state: dict[str, Any] | None = None,
    epochs: int = 1,
    **options: Any,
) -> tuple[list[list[Row]], list[dict[str, Any]]]:
    """Return the packed rows of every global step, and the state after each."""
    options = options or {"workers": 0}
    steps: list[list[Row]] = []
    states: list[dict[str, Any]] = []
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(data.loader(rank=r, world_size=world_size, **options))
            for r in range(world_size)
        ]
        for loader in ranks if state else ():
            loader.load_state_dict(json.loads(json.dumps(state)))
        for _ in range(epochs):
            assert len({len(loader) for loader in ranks}) == 1
            for parts in zip(*map(iter, ranks), strict=True):
                steps.append([row for part in parts for row in rows(part)])
                states.append(ranks[-1].state_dict())
                assert all(loader.state_dict() == states[-1] for loader in ranks)
    return steps, states


@pytest.mark.parametrize("cut", [True, False])
def test_a_packed_row_has_its_segments(lines: str, cut: bool) -> None:
    """Segments have their samples' tokens and labels, with positions from 0; the rest is padding,
    and marked.
    """
    found: dict[int, list[int]] = {}
    with packed(lines, cut=cut, partial="short").loader(workers=0) as loader:
        steps = len(loader)
        batches = list(loader)
    assert len(batches) == steps
    for batch in batches:
        assert set(batch) == {
            "tokens",
            "labels",
            "position_ids",
            "segment_ids",
            "cu_seqlens",
            "__index__",
        }
        flat = {name: column.flatten().tolist() for name, column in batch.items()}
        bounds = flat["cu_seqlens"]
        number = 0
        for begin, end, ordinal in zip(bounds[:-1], bounds[1:], flat["__index__"], strict=True):
            assert flat["position_ids"][begin:end] == list(range(end - begin))
            number = 1 if begin % LENGTH == 0 else number + 1
            tokens, labels = flat["tokens"][begin:end], flat["labels"][begin:end]
            if ordinal < 0:
                assert (tokens, labels) == ([0] * len(tokens), [-100] * len(tokens))
                assert end % LENGTH == 0
            else:
                assert labels == [-token for token in tokens]
                assert set(tokens) <= set(tokens_of(ordinal))
                found.setdefault(ordinal, []).extend(tokens)
            assert flat["segment_ids"][begin:end] == [number if ordinal >= 0 else 0] * (end - begin)
    assert {ordinal: sorted(tokens) for ordinal, tokens in found.items()} == {
        i: tokens_of(i) for i in range(SAMPLES) if tokens_of(i)
    }


@pytest.mark.parametrize(("cut", "partial"), [(True, "pad"), (False, "short")])
def test_every_step_can_be_resumed_elsewhere(
    lines: str, pool_of_1: ri.Pool, cut: bool, partial: str
) -> None:
    """From the state after every step, on other ranks and on Ray, the rest of two epochs is the
    same.
    """
    data = packed(lines, cut=cut, partial=partial)
    reference, states = run(data, epochs=2)
    with data.loader(workers=0) as loader:
        first = len(loader)
    assert len(json.dumps(states[0])) < 1024
    assert states[0]["order"]["kind"] == "packed"
    assert run(data, 2, epochs=2, pool=pool_of_1)[0] == reference
    for step, state in enumerate(states[:-1], 1):
        assert (
            run(data, (1, 2, 3)[step % 3], state=state, epochs=1 if step >= first else 2)[0]
            == reference[step:]
        )
    assert run(data, 3, state=states[2], epochs=2, pool=pool_of_1)[0] == reference[3:]


def test_the_least_budget_gives_the_same(lines: str, pool_of_1: ri.Pool) -> None:
    """If a step's blocks do not fit together, its samples are decoded in parts and packed at the
    end.
    """
    data = packed(lines, window=SAMPLES)
    with data.loader(pool=pool_of_1, max_bytes=30_000, epochs=1) as loader:
        steps = [rows(batch) for batch in loader]
        assert loader.stats()["blocks_reread"] > 0
    assert steps == run(data)[0]


def test_columns_of_parquet_are_packed_as_samples_are(tmp_path: Path, pool_of_1: ri.Pool) -> None:
    """As whole columns if no stage touches them, and sample by sample; the dtype stays."""
    tokens = pa.array([tokens_of(i) for i in range(SAMPLES)], pa.list_(pa.int32()))
    pq.write_table(
        pa.table({"tokens": tokens, "labels": tokens}), tmp_path / "a.parquet", row_group_size=20
    )
    data = (
        ri.read_parquet(str(tmp_path / "a.parquet"))
        .pack(LENGTH, ["tokens", "labels"])
        .shuffle(seed=1)
        .batch(BATCH)
    )
    reference = run(data)[0]
    assert run(data, pool=pool_of_1)[0] == reference
    with data.loader(workers=0) as loader:
        assert str(next(iter(loader))["tokens"].dtype) == "torch.int32"


def test_without_shuffle_rows_are_the_tokens_in_order(lines: str) -> None:
    """Cut rows hold the data's tokens one after the other."""
    with packed(lines, seed=None).loader(workers=0) as loader:
        taken = [token for batch in loader for token in batch["tokens"].flatten().tolist()]
    everything = [token for i in range(SAMPLES) for token in tokens_of(i)]
    assert taken == everything[: len(taken)]
    assert len(everything) - len(taken) < BATCH * LENGTH


def longer(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "tokens": [*sample["tokens"], 0]}


def test_a_sample_of_another_length_is_an_error(lines: str, pool_of_1: ri.Pool) -> None:
    """A sample that is longer than planned is named with its shard; on Ray, too."""
    data = packed(lines, then=lambda data: data.map(longer))
    for place in ({"workers": 0}, {"pool": pool_of_1}):
        with pytest.raises(
            ri.DataError,
            match=r"'tokens' has \d+ values here, and \.length said \d+.*jsonl.*sample",
        ):
            run(data, **place)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.epoch(passes=2), "epoch cannot be used with pack"),
        (
            lambda data: data.batch(6, collate=list),
            r"batch\(collate=...\) cannot be used with pack",
        ),
        (
            lambda data: data.batch(6, bucketed=True),
            r"batch\(bucketed=True\) cannot be used with pack",
        ),
        (lambda data: data.batch(6, pad={"text": ri.Pad()}), "'text' is not packed"),
        (lambda data: data.batch(6, pad={"tokens": ri.Pad(side="left")}), "only the value"),
        (lambda data: data.pack(4, "cu_seqlens"), "rename yours"),
        (lambda data: data.pack(4, []), "a field's name, or a list"),
        (lambda data: data.batch(1000), "less than one global batch of 1000"),
    ],
)
def test_wrong_options_are_refused(lines: str, change: Any, said: str) -> None:
    """In one line that names the value."""
    with pytest.raises(ri.ConfigError, match=said):
        run(change(packed(lines)))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"seed": None, "then": lambda data: data.shuffle(seed=1, lanes=2)}, "lanes=2"),
        ({"length": 4, "fields": "tokens", "cut": False}, "more than a packed row of 4"),
        ({"fields": "text"}, "'text' is no number"),
    ],
)
def test_rows_that_cannot_be_made_are_refused(lines: str, rows: dict[str, Any], said: str) -> None:
    """In one line that names the value."""
    data = packed(lines, **rows).batch(BATCH)
    with pytest.raises(ri.ConfigError, match=said):
        run(data)


def test_skipping_is_refused(lines: str) -> None:
    """A replacement would have another length."""
    with pytest.raises(ri.ConfigError, match=r"on_error='skip'\) cannot be used with pack"):
        packed(lines).loader(workers=0, on_error="skip")


def test_a_state_of_other_rows_is_refused(lines: str) -> None:
    """Another length, kind or window is named."""
    state = run(packed(lines))[1][1]
    longer_rows = packed(lines, length=32, fields="tokens").batch(6)
    for other in (packed(lines, cut=False), packed(lines, window=40), longer_rows):
        with pytest.raises(ri.StateError, match="bins: the state has 'cut at 16, windows of 60'"):
            run(other, state=state)
