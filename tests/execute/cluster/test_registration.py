"""Registration of a stream with workers, over a connection that only records what is sent."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from rayingest.errors import DataError
from rayingest.execute.cluster.pool import ActorHandle
from rayingest.execute.cluster.registration import Registration, StoredWork


class Recorder:
    """A connection: every put returns another reference; every call is recorded."""

    def __init__(self) -> None:
        self.puts: list[Any] = []
        self.copies = 0
        self.sent: list[tuple[Any, ...]] = []

    def put(self, value: Any) -> str:
        """Return a new reference."""
        self.puts.append(value)
        return f"ref {len(self.puts)}"

    def copy(self, ref: str) -> str:
        """Return a new reference, which names the old one."""
        self.copies += 1
        return f"copy {self.copies} of {ref}"

    def call(self, method: str, *args: Any) -> None:
        """Record the actor's name, which stands in for its methods here, and the arguments."""
        self.sent.append((method, *args))


def handle_of(name: str, role: Any) -> ActorHandle:
    """An actor whose methods are its name."""
    return ActorHandle(name, role, SimpleNamespace(register=name, learn=name))


def test_actors_that_start_after_a_node_was_lost_get_another_copy() -> None:
    """The description is pickled once; later copies are made from the first one."""
    work, schema = SimpleNamespace(stages=()), SimpleNamespace()
    stream: Any = SimpleNamespace(work=work, known_schema=schema, needs_schema=True)
    recorder = Recorder()
    pool: Any = SimpleNamespace(connection=recorder, workers=2)
    connection: Any = recorder
    registration = Registration(stream, StoredWork(work, connection), pool, "key", lambda *_: None)
    old_reader, old_decoder = handle_of("reader0", "reader"), handle_of("decoder0", "decoder")
    registration.add(old_reader)
    registration.add(old_decoder)
    registration.remove(handle_of("decoder1", "decoder"), with_node=False)
    registration.add(handle_of("reader1", "reader"))
    registration.remove(old_reader, with_node=True)
    registration.remove(old_decoder, with_node=True)
    for name, role in (("reader2", "reader"), ("decoder2", "decoder"), ("decoder3", "decoder")):
        registration.add(handle_of(name, role))
    assert recorder.sent == [
        ("reader0", "key", "ref 1"),
        ("decoder0", "key", "ref 1", (0, 2), schema),
        ("reader1", "key", "ref 1"),
        ("reader2", "key", "copy 1 of ref 1"),
        ("decoder2", "key", "copy 1 of ref 1", (0, 2), schema),
        ("decoder3", "key", "copy 1 of ref 1", (1, 2), schema),
    ]
    assert recorder.puts == [work]


def test_a_restart_forgives_the_running_attempt_to_learn_the_schema() -> None:
    """Its error may have a cause that is gone. The next attempt's error counts."""
    work = SimpleNamespace(stages=())
    stream: Any = SimpleNamespace(
        work=work, known_schema=None, needs_schema=True, can_learn=True, heads=lambda: ["head"]
    )
    recorder = Recorder()
    pool: Any = SimpleNamespace(connection=recorder, workers=2)
    connection: Any = recorder
    registration = Registration(stream, StoredWork(work, connection), pool, "key", lambda *_: None)
    decoder = handle_of("decoder0", "decoder")
    registration.restart()
    registration.add(decoder)
    failed: Future[Any] = Future()
    failed.set_exception(DataError("not there"))
    with pytest.raises(DataError, match="not there"):
        registration.on_schema(decoder, failed)
    registration.advance()
    registration.restart()
    registration.on_schema(decoder, failed)
    assert registration.learning
    with pytest.raises(DataError, match="not there"):
        registration.on_schema(decoder, failed)
    assert recorder.sent == [("decoder0", "ref 1", (0, 2), ["head"])] * 3
