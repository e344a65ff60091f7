"""The order of docs/add_an_order.md works as the page says, on any ranks and from any step."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import rayingest as ri
from rayingest.plan.order import kinds

PAGE = Path(__file__).parents[2] / "docs/add_an_order.md"


@pytest.fixture
def zigzag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The page's data, once its code has run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kinds, "KINDS", dict(kinds.KINDS))
    names: dict[str, Any] = {"__name__": "page"}
    for block in re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE.read_text()):
        exec(compile(block, PAGE.name, "exec"), names)
    return names["zigzag"]


def test_it_resumes_at_every_step(zigzag: Any) -> None:
    """A new loader with the state after a step goes on as the first one does, across a pass."""
    with zigzag.loader(workers=0) as loader:
        states, batches = [], []
        for _ in range(2):
            for batch in loader:
                states.append(json.loads(json.dumps(loader.state_dict())))
                batches.append(batch["n"].tolist())
    for after, state in enumerate(states[:-1], 1):
        with zigzag.loader(workers=0) as loader:
            loader.load_state_dict(state)
            assert next(iter(loader))["n"].tolist() == batches[after]


def test_its_ranks_share_the_global_batches(zigzag: Any) -> None:
    """Two ranks have the halves of each batch, in both directions."""
    ranks = []
    for rank in range(2):
        with zigzag.loader(workers=0, rank=rank, world_size=2) as loader:
            ranks.append([batch["n"].tolist() for _ in range(2) for batch in loader])
    assert [a + b for a, b in zip(*ranks, strict=True)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
        [9, 8, 7, 6],
        [5, 4, 3, 2],
        [1, 0],
    ]


def test_its_state_is_of_its_kind(zigzag: Any) -> None:
    """The kind is named, and refused by a loader of another kind."""
    with zigzag.loader(workers=0) as loader:
        state = loader.state_dict()
    assert state["order"]["kind"] == "zigzag"
    data = ri.read_json("numbers.jsonl").batch(4, partial="short")
    with (
        data.loader(workers=0) as loader,
        pytest.raises(ri.StateError, match="kind: the state has 'zigzag', this loader 'window'"),
    ):
        loader.load_state_dict(state)


def test_a_name_is_taken_once(zigzag: Any) -> None:
    """Another function under the same name is refused; so is a kind that nobody registered."""

    def no_order(request: Any) -> Any:
        return request

    with pytest.raises(ri.ConfigError, match="'zigzag' is registered already"):
        kinds.register_kind("zigzag", no_order)
    with pytest.raises(ri.ConfigError, match="order kind 'zagzig' is not registered"):
        kinds.build("zagzig", None)  # type: ignore[arg-type]
