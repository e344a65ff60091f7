"""The table of object references: what a decoder must receive, what it keeps, and what lingers."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)

from rayingest.execute.cluster.object_refs import BlockMessage, BlockRefs, NewBlock, Results
from rayingest.plan.dispatch import events as ev


def table_of(*numbers: int) -> BlockRefs:
    """A table with these blocks, all read on one node."""
    table = BlockRefs()
    for number in numbers:
        table.add(number, f"ref {number}", "node")
    return table


def deliver(table: BlockRefs, holder: str, numbers: list[int]) -> BlockMessage:
    """Send the decoder a task on these blocks, which arrives."""
    message, _ = table.message(holder, numbers)
    table.settle(holder, message, arrived=True)
    return message


def test_a_block_is_sent_until_the_decoder_surely_has_it() -> None:
    """Calls may overtake each other, so a block of an unsettled call is sent again."""
    table = table_of(7, 8)
    first, refs = table.message("a", [7, 8])
    assert refs == ["ref 7", "ref 8"]
    assert table.message("a", [8])[1] == ["ref 8"]
    table.settle("a", first, arrived=True)
    third, refs = table.message("a", [8, 7])
    assert refs == []
    assert third.uses == first.uses[::-1]
    assert table.message("b", [7])[1] == ["ref 7"]


def test_after_a_call_that_failed_blocks_are_sent_again() -> None:
    """The decoder may not have seen the call, so its releases are repeated, too."""
    table = table_of(7, 8)
    deliver(table, "a", [7, 8])
    table.drop([8], 1.0)
    message, _ = table.message("a", [7])
    assert len(message.released) == 1
    table.settle("a", message, arrived=False)
    again, refs = table.message("a", [7])
    assert (refs, again.released) == (["ref 7"], message.released)


def test_blocks_that_a_decoder_may_have_a_copy_of_are_found() -> None:
    """From when they are sent, arrived or not, until they are dropped."""
    table = table_of(6, 7, 8)
    deliver(table, "a", [7])
    table.message("a", [8])
    table.message("b", [6])
    assert table.sent_to("a") == (7, 8)
    table.drop([7], 1.0)
    assert table.sent_to("a") == (8,)


def test_a_dropped_block_lingers_until_every_decoder_has_released_it() -> None:
    """It counts from the time of the drop, and only if a decoder ever received it."""
    table = table_of(6, 7, 8)
    for holder in ("a", "b"):
        deliver(table, holder, [6, 7])
    assert table.drop([7, 8, 9], 1.0) == (7, 8)
    assert table.drop([6], 2.0) == (6,)
    messages = dict(table.release_messages())
    assert messages.keys() == {"a", "b"}
    assert table.release_messages() == []
    table.settle("a", messages["a"], arrived=True)
    assert table.lingers_since() == 1.0
    table.settle("b", BlockMessage(released=messages["b"].released[:1]), arrived=True)
    assert table.lingers_since() == 2.0
    table.settle("b", messages["b"], arrived=True)
    assert table.lingers_since() is None


def test_a_lost_decoder_keeps_nothing() -> None:
    """Blocks that lingered only there are gone; a new decoder of its name receives everything."""
    table = table_of(7, 8)
    deliver(table, "a", [7, 8])
    table.drop([8], 1.0)
    table.remove_decoder("a")
    assert table.lingers_since() is None
    assert table.release_messages() == []
    assert table.message("a", [7])[1] == ["ref 7"]


def test_a_block_that_is_read_again_is_another_copy() -> None:
    """The old copy lingers under its own serial; releasing it does not touch the new one."""
    table = table_of(7)
    old = deliver(table, "a", [7])
    table.drop([7], 1.0)
    table.add(7, "new ref", "node")
    new, refs = table.message("a", [7])
    assert refs == ["new ref"]
    assert new.released == old.uses != new.uses


def test_blocks_that_were_read_on_a_node_are_found() -> None:
    """As long as they are in the store."""
    table = table_of(7)
    table.add(8, "ref 8", "other")
    assert table.read_on("other") == (8,)
    table.drop([8], 1.0)
    assert table.read_on("other") == ()


def test_a_task_may_be_discarded_part_by_part_in_one_round() -> None:
    """The last discard removes the task's entry."""
    results = Results()
    results.outputs = {7: {0: "a", 1: "b"}, 8: {0: "c", 1: "d"}}
    assert results.settle([ev.Discard(7, (0,)), ev.Discard(8, (1,)), ev.Discard(7, (1,))]) == []
    assert results.outputs == {8: {0: "c"}}


def test_new_blocks_are_returned_once_without_those_discarded_or_lost() -> None:
    """The table of results then has no blocks."""
    results = Results()
    new = {number: NewBlock(f"ref{number}", "ab"[number % 2]) for number in range(5)}
    results.blocks = {3: new}
    assert results.read_on("b") == [1, 3]
    assert results.lose((1, 9)) == [1]
    settled = results.settle([ev.Discard(3, (0,)), ev.Discard(3, (4,))])
    assert [number for number, _ in settled] == [2, 3]
    assert results.settle([]) == []


class Sent(NamedTuple):
    """A call on a decoder that has not ended."""

    holder: str
    message: BlockMessage
    numbers: list[int]


class Exchange(RuleBasedStateMachine):
    """Decoders run calls in any order, results come in any order, calls fail, decoders end."""

    calls = Bundle("calls")

    def __init__(self) -> None:
        super().__init__()
        self.table = BlockRefs()
        self.there: dict[int, int] = {}  # by block, the number of running calls that use it
        self.kept: dict[str, set[int]] = {"a": set(), "b": set()}
        self.running: list[Sent] = []

    @rule(number=st.integers(0, 5))
    def read(self, number: int) -> None:
        if number not in self.there:
            self.table.add(number, number, "node")
            self.there[number] = 0

    @precondition(lambda self: self.there)
    @rule(target=calls, data=st.data(), holder=st.sampled_from("ab"))
    def send(self, data: st.DataObject, holder: str) -> Sent:
        numbers = data.draw(st.lists(st.sampled_from(sorted(self.there)), min_size=1, unique=True))
        message, _ = self.table.message(holder, numbers)
        call = Sent(holder, message, numbers)
        self.running.append(call)
        for number in numbers:
            self.there[number] += 1
        return call

    @rule(call=consumes(calls))
    def succeed(self, call: Sent) -> None:
        if self._end(call):
            self._run(call.holder, call.message)
            self.table.settle(call.holder, call.message, arrived=True)

    @rule(call=consumes(calls), ran=st.booleans())
    def fail(self, call: Sent, ran: bool) -> None:
        if self._end(call):
            if ran:
                self._run(call.holder, call.message)
            self.table.settle(call.holder, call.message, arrived=False)

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.there)))
        if not self.there[number]:
            del self.there[number]
            assert self.table.drop([number], 1.0) == (number,)

    @rule(holder=st.sampled_from("ab"))
    def lose(self, holder: str) -> None:
        for call in [call for call in self.running if call.holder == holder]:
            self._end(call)
        self.kept[holder].clear()
        self.table.remove_decoder(holder)

    @rule()
    def release(self) -> None:
        for holder, message in self.table.release_messages():
            self._run(holder, message)
            self.table.settle(holder, message, arrived=True)

    @invariant()
    def knows_what_lingers(self) -> None:
        """A dropped block lingers while a decoder has it, and not once all have released it."""
        current = {
            serial for number in self.there for serial in self.table.message("c", [number])[0].uses
        }
        self.table.remove_decoder("c")
        if set().union(*self.kept.values()) - current:
            assert self.table.lingers_since() is not None
        if not self.running:
            self.release()
            assert self.table.lingers_since() is None
            assert set().union(*self.kept.values()) <= current

    def _end(self, call: Sent) -> bool:
        """False if the call has ended already, together with its decoder."""
        if not any(other is call for other in self.running):
            return False
        self.running = [other for other in self.running if other is not call]
        for number in call.numbers:
            self.there[number] -= 1
        return True

    def _run(self, holder: str, message: BlockMessage) -> None:
        kept: Any = self.kept[holder]
        kept -= set(message.released)
        kept |= set(message.sent)
        assert kept.issuperset(message.uses)


test_decoders_always_have_what_they_need = Exchange.TestCase
