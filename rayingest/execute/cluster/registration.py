"""The briefing: how each worker gets a stream's description, readers at once, decoders with the schema of its samples.

Owns the description in the object store, and which decoder learns the schema for all of them. For one thread, the
feeder's. Knows no tasks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import ray
import ray.exceptions as rx

from rayingest.errors import ConfigError, DataError, EndOfStreamError, IngestError, WorkerError
from rayingest.execute.cluster.connection import DEATHS
from rayingest.execute.cluster.pool import Member, Pool
from rayingest.execute.stream import Stream
from rayingest.execute.work import Head, Work

_TRIES = 2
"""So many decoders may die while they learn from a block's first samples before the next block's are taken."""

Call = Callable[[Any, str, Member], None]
"""(reference, kind, member): have the answer told as an arrival of that kind."""


class _InStore:
    """A description that workers are given, in the object store. Raises ConfigError where it cannot be put there."""

    def __init__(self, work: Work, put: Callable[[Work], Any]) -> None:
        self._work, self._put = work, put
        self._ref = _shipped(work, put)

    @property
    def ref(self) -> Any:
        """A reference to it."""
        if self._ref is None:
            self._ref = _shipped(self._work, self._put)
        return self._ref

    def node_lost(self) -> None:
        """Whoever comes from now on is given another copy: Ray asks any node that has one, and where that is the lost
        node it asks another only after 10 s (`pull_timeout_ms`), or when the lost one is declared dead.
        """
        self._ref = None


class Registration:
    """One stream's. Raises ConfigError for a description that cannot be sent to workers."""

    def __init__(self, stream: Stream, pool: Pool, key: str, call: Call) -> None:
        self._stream, self._pool, self._key, self._call = stream, pool, key, call
        self._work = _InStore(stream.work, pool.connection.put)
        self._learnt: _InStore | None = None
        self._heads: list[Head] = []
        self._waiting: list[Member] = []  # decoders, until the first of them has learnt the schema
        self._learner: Member | None = None
        self._begun = 0.0
        self._deaths = 0

    @property
    def learning(self) -> bool:
        """Whether a decoder learns the schema now."""
        return self._learner is not None

    def introduce(self, member: Member) -> None:
        """Give a new member the stream; a decoder as soon as the schema is known, which the first one learns."""
        if member.role == "reader":
            self._register(member, self._work)
        else:
            self._waiting.append(member)
            self.go_on()

    def learnt(self, member: Member, future: Any) -> None:
        """A decoder learnt the schema, or could not. Raises what is wrong with the data or the description."""
        if member is not self._learner:
            return
        self._learner = None
        error = future.exception()
        if error is None:
            work = future.result()
            self._stream.learnt(work)
            self._learnt = _InStore(work, self._pool.connection.put)
        elif isinstance(error, DEATHS):
            self._deaths += 1
            if self._deaths % _TRIES == 0:  # a sample that ends its worker, it seems
                del self._heads[0]
            if not self._heads:
                raise WorkerError(
                    f"{self._deaths} decoders died of the first samples of the data, or took longer for them than "
                    f"decode_timeout, lastly: {error}"
                )
            self._pool.report_dead(member, error)
        else:
            raise refusal(error)
        self.go_on()

    def end_learner(self, begun_before: float) -> None:
        """End the decoder that learns, and has since before then: what it is at may never end."""
        if self._learner is not None and self._begun < begun_before:
            self._begun = math.inf
            self._pool.connection.kill(self._learner.actor)

    def lost(self, member: Member, with_node: bool) -> None:
        """A member is gone, perhaps with its node."""
        if with_node:
            for kept in filter(None, (self._work, self._learnt)):
                kept.node_lost()
        if member in self._waiting:
            self._waiting.remove(member)
        if member is self._learner:
            self._learner = None
        self.go_on()

    def go_on(self) -> None:
        """Something is known that was not: have decoders take the stream up, or one of them learn what they need."""
        if self._learnt is None and self._waiting and (known := self._stream.known()) is not None:
            kept = known is self._stream.work
            self._learnt = self._work if kept else _InStore(known, self._pool.connection.put)
        if self._learnt is not None:
            for member in self._waiting:
                self._register(member, self._learnt)
            self._waiting.clear()
        elif self._learner is None and self._waiting and self._stream.can_learn:
            self._learner, self._begun = self._waiting[0], time.monotonic()
            self._heads = self._heads or self._stream.heads()
            learnt = self._pool.connection.call(
                self._learner.actor.learn, self._work.ref, self._heads
            )
            self._call(learnt, "learnt", self._learner)

    def _register(self, member: Member, work: _InStore) -> None:
        registered = self._pool.connection.call(member.actor.register, self._key, work.ref)
        self._call(registered, "registered", member)


def refusal(error: BaseException) -> IngestError:
    """What to raise where a worker could not take the description up."""
    cause = error.cause if isinstance(error, rx.RayTaskError) else error
    if isinstance(cause, EndOfStreamError):
        return DataError(f"fewer records than when they were first read: {cause}", transient=True)
    if isinstance(cause, IngestError):
        return cause
    last = str(error).strip().splitlines()[-1]
    return ConfigError(
        f"the workers cannot take up the description of the data: {last}; what it uses must be importable "
        "there: install it, or give ray.init a runtime_env with working_dir or py_modules"
    )


def _shipped(work: Work, put: Callable[[Work], Any]) -> Any:
    try:
        return put(work)
    except Exception as error:
        stages = [type(stage).__name__ for stage in work.stages if not _can_be_sent(stage)]
        raise ConfigError(
            f"the description of the data ({', '.join(stages) or 'collate'}) cannot be sent to the workers: "
            f"{str(error).strip().splitlines()[0]}; leave locks, files and connections to the worker: a class given to "
            ".map is set up there"
        ) from error


def _can_be_sent(value: Any) -> bool:
    try:
        ray.cloudpickle.dumps(value)
    except Exception:
        return False
    return True
