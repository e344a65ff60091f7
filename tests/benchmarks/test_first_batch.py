"""First batches: the steps of a turn, and the comparison after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import first_batch, first_batch_turn


class Counted:
    """A loader of 20 batches of two samples an epoch."""

    def __iter__(self) -> Any:
        return iter([{"label": [2 * step, 2 * step + 1]} for step in range(20)])


class Kept(Counted):
    """A loader whose state is the number of batches taken."""

    taken = 0

    def __iter__(self) -> Any:
        for batch in [*super().__iter__()][self.taken :]:
            self.taken += 1
            yield batch
        self.taken = 0

    def state_dict(self) -> dict[str, int]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.taken = state["taken"]


class Exhausted(Kept):
    """A loader whose state has lost the rest of the epoch."""

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.taken = 20


@pytest.mark.parametrize(
    ("loader", "by", "lost"),
    [(Counted, "dropping", 0), (Kept, "state", 0), (Exhausted, "state", 4)],
)
def test_a_resume_follows_a_start(tmp_path: Path, loader: Any, by: str, lost: int) -> None:
    """With a state or by dropping; a resume reaches the end of the first epoch."""
    assert first_batch_turn.prepare(loader, 20, tmp_path) == {}
    start = first_batch_turn.start(loader, 20, tmp_path)
    assert [len(start["seconds"]), start["labels"][0], start["labels"][-1]] == [21, [0, 1], [0, 1]]
    resume = first_batch_turn.resume(loader, 20, tmp_path)
    assert resume["by"] == by
    assert resume["labels"] == ([] if lost else [[36, 37], [38, 39]])
    figures = first_batch.summarise({"counted": [(start, resume)] * 2})
    assert figures["counted"]["lost"] == lost
    assert ("4 lost, 0 again" if lost else "identical") in first_batch.report(figures)


def test_what_follows_a_resume_is_compared_sample_by_sample() -> None:
    """Samples that are missing, that come again, and the same in another order."""
    compare = first_batch.compare
    whole = [[2 * step, 2 * step + 1] for step in range(20)]
    assert compare(whole, [[36, 37], [38, 39]]) == {"identical": True, "lost": 0, "again": 0}
    assert compare(whole, [[38, 37], [36, 39]]) == {"identical": False, "lost": 0, "again": 0}
    assert compare(whole, [[36, 0], [1, 36]]) == {"identical": False, "lost": 3, "again": 3}
    with pytest.raises(ValueError, match="more than once"):
        compare([*whole, [0, 1]], [])
