"""The books of blocks: what a decoder must be given, what it keeps, and what lingers after a block was given up."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)

from rayingest.execute.cluster.object_refs import Holdings, Parcel


def holdings(*numbers: int) -> Holdings:
    """These blocks, all read on one node."""
    made = Holdings()
    for number in numbers:
        made.add(number, f"ref {number}", "node")
    return made


def test_a_block_comes_along_until_the_decoder_has_it() -> None:
    """Not settled yet, it is given again: calls may overtake each other. Then it is named only."""
    books = holdings(7, 8)
    first, second = books.pack("a", [7, 8]), books.pack("a", [8])
    assert (first.refs, second.refs) == (("ref 7", "ref 8"), ("ref 8",))
    books.settle(first, arrived=True)
    third = books.pack("a", [8, 7])
    assert third.refs == ()
    assert third.serials == first.serials[::-1]
    assert books.pack("b", [7]).refs == ("ref 7",)


def test_after_a_call_that_failed_blocks_come_along_again() -> None:
    """It is not known what the decoder has heard: what it was told is told again, too."""
    books = holdings(7, 8)
    books.settle(books.pack("a", [7, 8]), arrived=True)
    books.drop([8], 1.0)
    call = books.pack("a", [7])
    assert len(call.leaving) == 1
    books.settle(call, arrived=False)
    again = books.pack("a", [7])
    assert (again.refs, again.leaving) == (("ref 7",), call.leaving)


def test_blocks_of_which_a_decoder_may_have_a_copy_are_known() -> None:
    """From when they are sent to it, arrived or not, until they are given up."""
    books = holdings(6, 7, 8)
    books.settle(books.pack("a", [7]), arrived=True)
    books.pack("a", [8])
    books.pack("b", [6])
    assert books.given_to("a") == (7, 8)
    books.drop([7], 1.0)
    assert books.given_to("a") == (8,)


def test_a_block_given_up_lingers_until_every_decoder_let_go() -> None:
    """From when it was given up to the last answer, and only where some decoder was ever given it."""
    books = holdings(6, 7, 8)
    for holder in ("a", "b"):
        books.settle(books.pack(holder, [6, 7]), arrived=True)
    assert books.drop([7, 8, 9], 1.0) == (7, 8)
    assert books.drop([6], 2.0) == (6,)
    first, second = books.letters(but=["b"]), books.letters()
    assert ([letter.holder for letter in first], [letter.holder for letter in second]) == (
        ["a"],
        ["b"],
    )
    assert books.letters() == []
    books.settle(first[0], arrived=True)
    assert books.lingers_since() == 1.0
    books.settle(Parcel("b", leaving=second[0].leaving[:1]), arrived=True)
    assert books.lingers_since() == 2.0
    books.settle(second[0], arrived=True)
    assert books.lingers_since() is None


def test_a_lost_decoder_keeps_nothing() -> None:
    """What lingers only there is gone; another of its name would be given everything."""
    books = holdings(7, 8)
    books.settle(books.pack("a", [7, 8]), arrived=True)
    books.drop([8], 1.0)
    books.lose("a")
    assert books.lingers_since() is None
    assert books.letters() == []
    assert books.pack("a", [7]).refs == ("ref 7",)


def test_a_block_read_again_is_another() -> None:
    """The old one lingers beside it, under another serial; letting go of it does not touch the new one."""
    books = holdings(7)
    old = books.pack("a", [7])
    books.settle(old, arrived=True)
    books.drop([7], 1.0)
    books.add(7, "new ref", "node")
    new = books.pack("a", [7])
    assert new.refs == ("new ref",)
    assert new.leaving == old.serials != new.serials


def test_blocks_of_a_node() -> None:
    """Those in the store that were read there."""
    books = holdings(7)
    books.add(8, "ref 8", "other")
    assert books.read_on("other") == (8,)
    books.drop([8], 1.0)
    assert books.read_on("other") == ()


class Exchange(RuleBasedStateMachine):
    """Decoders that run their calls in any order, answers in any order, calls that fail or whose decoder ends."""

    calls = Bundle("calls")

    def __init__(self) -> None:
        super().__init__()
        self.books = Holdings()
        self.there: dict[int, int] = {}  # numbers, with how many calls under way use them
        self.kept: dict[str, set[int]] = {"a": set(), "b": set()}
        self.under_way: list[Parcel] = []
        self.use: dict[int, list[int]] = {}

    @rule(number=st.integers(0, 5))
    def read(self, number: int) -> None:
        if number not in self.there:
            self.books.add(number, number, "node")
            self.there[number] = 0

    @precondition(lambda self: self.there)
    @rule(target=calls, data=st.data(), holder=st.sampled_from("ab"))
    def send(self, data: st.DataObject, holder: str) -> Parcel:
        numbers = data.draw(st.lists(st.sampled_from(sorted(self.there)), min_size=1, unique=True))
        parcel = self.books.pack(holder, numbers)
        self.under_way.append(parcel)
        self.use[id(parcel)] = numbers
        for number in numbers:
            self.there[number] += 1
        return parcel

    @rule(parcel=consumes(calls))
    def succeed(self, parcel: Parcel) -> None:
        if self._ends(parcel):
            self._run(parcel)
            self.books.settle(parcel, arrived=True)

    @rule(parcel=consumes(calls), ran=st.booleans())
    def fail(self, parcel: Parcel, ran: bool) -> None:
        if self._ends(parcel):
            if ran:
                self._run(parcel)
            self.books.settle(parcel, arrived=False)

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.there)))
        if not self.there[number]:
            del self.there[number]
            assert self.books.drop([number], 1.0) == (number,)

    @rule(holder=st.sampled_from("ab"))
    def lose(self, holder: str) -> None:
        for parcel in [parcel for parcel in self.under_way if parcel.holder == holder]:
            self._ends(parcel)
        self.kept[holder].clear()
        self.books.lose(holder)

    @rule()
    def tell(self) -> None:
        for letter in self.books.letters():
            self._run(letter)
            self.books.settle(letter, arrived=True)

    @invariant()
    def knows_what_lingers(self) -> None:
        """Whenever some decoder has what was given up; and nothing does once all were told and none is busy."""
        current = {
            serial for number in self.there for serial in self.books.pack("c", [number]).serials
        }
        self.books.lose("c")
        if set().union(*self.kept.values()) - current:
            assert self.books.lingers_since() is not None
        if not self.under_way:
            self.tell()
            assert self.books.lingers_since() is None
            assert set().union(*self.kept.values()) <= current

    def _ends(self, parcel: Parcel) -> bool:
        if not any(other is parcel for other in self.under_way):
            return False  # with its decoder
        self.under_way = [other for other in self.under_way if other is not parcel]
        for number in self.use.pop(id(parcel)):
            self.there[number] -= 1
        return True

    def _run(self, parcel: Parcel) -> None:
        kept: Any = self.kept[parcel.holder]
        kept -= set(parcel.leaving)
        kept |= set(parcel.coming)
        assert kept.issuperset(parcel.serials)


test_decoders_always_have_what_they_need = Exchange.TestCase
