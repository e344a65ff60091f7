"""How workers get a stream's description, over a wire that only takes down what is sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rayingest.execute.cluster.pool import Member
from rayingest.execute.cluster.registration import Registration


class Wire:
    """Stands in for the connection: every put is another reference, every call is kept with its last argument."""

    def __init__(self) -> None:
        self.puts: list[Any] = []
        self.sent: list[tuple[str, Any]] = []

    def put(self, value: Any) -> str:
        """A reference of its own."""
        self.puts.append(value)
        return f"ref {len(self.puts)}"

    def call(self, method: str, *args: Any) -> None:
        """To `method`, which is a member's name here."""
        self.sent.append((method, args[-1]))


def member(name: str, role: Any) -> Member:
    """One whose calls are told apart by its name."""
    return Member(name, role, SimpleNamespace(register=name, learn=name))


def test_who_comes_after_a_node_was_lost_is_given_another_copy() -> None:
    """Not after any other loss; both descriptions are renewed, that of readers and that of decoders."""
    work, learnt = SimpleNamespace(stages=()), SimpleNamespace(stages=())
    stream: Any = SimpleNamespace(work=work, known=lambda: learnt)
    wire = Wire()
    pool: Any = SimpleNamespace(connection=wire)
    briefing = Registration(stream, pool, "key", lambda *_: None)
    old_reader, old_decoder = member("reader0", "reader"), member("decoder0", "decoder")
    briefing.introduce(old_reader)
    briefing.introduce(old_decoder)
    briefing.lost(member("decoder1", "decoder"), with_node=False)
    briefing.introduce(member("reader1", "reader"))
    briefing.lost(old_reader, with_node=True)
    briefing.lost(old_decoder, with_node=True)
    for name, role in (("reader2", "reader"), ("decoder2", "decoder"), ("decoder3", "decoder")):
        briefing.introduce(member(name, role))
    assert wire.sent == [
        ("reader0", "ref 1"),
        ("decoder0", "ref 2"),
        ("reader1", "ref 1"),
        ("reader2", "ref 3"),
        ("decoder2", "ref 4"),
        ("decoder3", "ref 4"),
    ]
    assert wire.puts == [work, learnt, work, learnt]
