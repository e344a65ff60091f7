"""The books of what tasks brought: whatever is discarded of it in one round, in whatever parts."""

from __future__ import annotations

from rayingest.execute.cluster.object_refs import Answers, Arrived
from rayingest.plan.dispatch import events as ev


def test_a_task_may_be_discarded_part_by_part_in_one_round() -> None:
    """Emptied by the last of them, it is gone."""
    answers = Answers()
    answers.outputs = {7: {0: "a", 1: "b"}, 8: {0: "c", 1: "d"}}
    assert answers.settle([ev.Discard(7, (0,)), ev.Discard(8, (1,)), ev.Discard(7, (1,))]) == []
    assert answers.outputs == {8: {0: "c"}}


def test_blocks_that_came_are_told_once_but_for_those_discarded_or_lost() -> None:
    """And are then no longer kept here."""
    answers = Answers()
    came = {number: Arrived(f"ref{number}", "ab"[number % 2]) for number in range(5)}
    answers.blocks = {3: came}
    assert answers.read_on("b") == [1, 3]
    assert answers.lose((1, 9)) == [1]
    assert [number for number, _ in answers.settle([ev.Discard(3, (0,)), ev.Discard(3, (4,))])] == [
        2,
        3,
    ]
    assert answers.settle([]) == []
