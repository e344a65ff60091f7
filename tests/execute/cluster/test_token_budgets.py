"""Batches with a budget of padded tokens: on Ray as in this process, and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rayingest as ri
from rayingest.api.dataset import Dataset
from tests.support.streams import run

SAMPLES = 80


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Lists of 1 to 17 numbers."""
    folder: Path = tmp_path_factory.mktemp("lines")
    samples = [{"tokens": [i] * (1 + i * i % 17), "i": i} for i in range(SAMPLES)]
    (folder / "a.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return str(folder / "a.jsonl")


def budgeted(lines: str, **batch: Any) -> Dataset:
    data = ri.read_json(lines, block_bytes=400).length("tokens").shuffle(seed=3, window=50)
    return data.batch(max_tokens=96, pad={"tokens": ri.Pad(multiple_of=4)}, **batch)


@pytest.mark.parametrize("world_size", [1, 3])
def test_every_step_can_be_resumed(lines: str, pool_of_1: ri.Pool, world_size: int) -> None:
    """Each sample once, also on Ray; from the state after every step the rest of two epochs is the
    same.
    """
    data = budgeted(lines)
    reference = run(data, world_size, epochs=2)[0]
    assert run(data, world_size, epochs=2, pool=pool_of_1)[0] == reference
    with data.loader(workers=0, rank=0, world_size=world_size) as loader:
        states, first = [], len(loader)
        for _ in range(2):
            for batch in loader:
                assert batch["tokens"].numel() <= 96
                assert batch["tokens"].shape[1] % 4 == 0
                states.append(loader.state_dict())
    assert sorted(i for step in reference[:first] for i, _ in step) == list(range(SAMPLES))
    assert len(states) == len(reference)
    assert len(json.dumps(states[0])) < 1024
    for step, state in enumerate(states[:-1], 1):
        rest = run(data, world_size, state=state, epochs=1 if step >= first else 2)[0]
        assert rest == reference[step:]
    assert run(data, world_size, state=states[1], epochs=2, pool=pool_of_1)[0] == reference[2:]


def test_another_number_of_ranks_is_refused(lines: str) -> None:
    """The state names the number of ranks it was planned for."""
    state = run(budgeted(lines), 2, steps=2)[1]
    assert state["order"]["kind"] == "budgeted"
    with pytest.raises(ri.StateError, match=r"planned for 2 rank.*planned for 3 rank"):
        run(budgeted(lines), 3, state=state)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.batch(8, max_tokens=96), "give one of them"),
        (lambda data: data.batch(), "give one of them"),
        (
            lambda data: data.batch(max_tokens=96, bucketed=True),
            r"batch\(bucketed=True\) cannot be used with batch\(max_tokens",
        ),
        (lambda data: data.epoch(samples=64), r"epoch cannot be used with batch\(max_tokens"),
        (
            lambda data: data.pack(16, "tokens").batch(max_tokens=96),
            r"batch\(max_tokens=...\) cannot be used with pack",
        ),
        (lambda data: data.batch(max_tokens=16), "17 long.*more than max_tokens=16"),
    ],
)
def test_wrong_options_are_refused(lines: str, change: Any, said: str) -> None:
    """In one line that names the value."""
    with pytest.raises(ri.ConfigError, match=said):
        run(change(budgeted(lines)))


def test_lengths_are_needed(lines: str) -> None:
    """And `on_error="skip"` is refused: a replacement would have another length."""
    with pytest.raises(ri.ConfigError, match=r"needs \.length"):
        ri.read_json(lines).batch(max_tokens=96).loader(workers=0)
    with pytest.raises(ri.ConfigError, match=r"on_error='skip'\) cannot be used with batch"):
        budgeted(lines).loader(workers=0, on_error="skip")
