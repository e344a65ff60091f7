"""Register a stream with each worker: readers at once, decoders with the schema of the samples.

Owns the stream's description in the object store, and which decoder learns the schema for all. For
one thread, the feeder's. Knows no tasks.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import ray
import ray.exceptions as rx

from rayingest.errors import ConfigError, DataError, EndOfStreamError, IngestError, WorkerError
from rayingest.execute.cluster.connection import ACTOR_ERRORS, Connection
from rayingest.execute.cluster.pool import ActorHandle, Pool
from rayingest.execute.stream import Stream
from rayingest.execute.work import Head, Work
from rayingest.transforms.schema import Schema
from rayingest.transforms.torch.worker_info import Worker

_ATTEMPTS = 2
"""Decoders that may die while they learn from a block's samples, before the next block is used."""

OnResult = Callable[[Any, str, ActorHandle], None]
"""(reference, kind, handle): post the result of a call on this actor as an arrival of that kind."""


class StoredWork:
    """A stream's description in the object store. Raises ConfigError if it cannot be put there.

    It is pickled once, at the start: this process, too, may run the user's code, and open files and
    connections that cannot be pickled.
    """

    def __init__(self, work: Work, connection: Connection) -> None:
        self._connection = connection
        self._ref = _put_work(work, connection.put)
        self._on_lost_node = False

    @property
    def ref(self) -> Any:
        """A reference to the description."""
        if self._on_lost_node:
            self._ref, self._on_lost_node = self._connection.copy(self._ref), False
        return self._ref

    def drop_copy(self) -> None:
        """Use a new copy from now on, because a node was lost.

        Ray fetches an object from any node that has it. If that is the lost node, Ray tries another
        one only after 10 s (`pull_timeout_ms`), or once the lost node is declared dead.
        """
        self._on_lost_node = True


class Registration:
    """Registers one stream, whose description is `work`, with the actors of the pool."""

    def __init__(
        self, stream: Stream, work: StoredWork, pool: Pool, key: str, on_result: OnResult
    ) -> None:
        self._stream, self._work, self._pool = stream, work, pool
        self._key, self._on_result = key, on_result
        self._schema: Schema | None = None
        self._numbers: dict[ActorHandle, int] = {}  # of decoders, as `get_worker_info` shows them
        self._heads: list[Head] = []
        # Decoders that wait until the first of them has learned the schema.
        self._waiting: list[ActorHandle] = []
        self._learner: ActorHandle | None = None
        self._begun = 0.0
        # Whether the consumer has started again since the learner began.
        self._stale = False
        self._failures = 0

    @property
    def learning(self) -> bool:
        """Whether a decoder is learning the schema."""
        return self._learner is not None

    def add(self, handle: ActorHandle) -> None:
        """Register the stream with a new actor; a decoder waits until the schema is known."""
        if handle.role == "reader":
            self._register(handle)
        else:
            self._waiting.append(handle)
            self.advance()

    def on_schema(self, handle: ActorHandle, future: Any) -> None:
        """Take the schema that a decoder has learned.

        Raises:
            IngestError: the data or the description has an error.
            WorkerError: too many decoders died of the first samples.
        """
        if handle is not self._learner:
            return
        self._learner = None
        error = future.exception()
        if error is None:
            self._schema = future.result()
            self._stream.on_schema_learned(self._schema)
        elif isinstance(error, ACTOR_ERRORS):
            self._failures += 1
            if self._failures % _ATTEMPTS == 0:  # a sample of this block probably ends its worker
                del self._heads[0]
            if not self._heads:
                raise WorkerError(
                    "the first samples of the data cannot be decoded: "
                    f"{self._failures} decoders died, or exceeded decode_timeout; "
                    f"the last error: {error}"
                )
            self._pool.report_failure(handle, error)
        elif not self._stale:
            raise registration_error(error)
        self.advance()

    def restart(self) -> None:
        """Learn again if the running attempt fails: the consumer starts again, maybe without the
        cause.
        """
        self._stale = True

    def end_slow_learner(self, begun_before: float) -> None:
        """Kill the decoder that has been learning since before then: it may never finish."""
        if self._learner is not None and self._begun < begun_before:
            self._begun = math.inf
            self._pool.connection.kill(self._learner.actor)

    def remove(self, handle: ActorHandle, with_node: bool) -> None:
        """Remove an actor that was lost, perhaps with its node."""
        self._numbers.pop(handle, None)
        if with_node:
            self._work.drop_copy()
        if handle in self._waiting:
            self._waiting.remove(handle)
        if handle is self._learner:
            self._learner = None
        self.advance()

    def advance(self) -> None:
        """Register waiting decoders if the schema is known; otherwise let one of them learn it."""
        if self._schema is None and self._waiting:
            self._schema = self._stream.known_schema
        if self._schema is not None or not self._stream.needs_schema:
            for handle in self._waiting:
                self._register(handle, self._worker(handle), self._schema)
            self._waiting.clear()
        elif self._learner is None and self._waiting and self._stream.can_learn:
            self._learner, self._begun = self._waiting[0], time.monotonic()
            self._stale = False
            self._heads = self._heads or self._stream.heads()
            schema = self._pool.connection.call(
                self._learner.actor.learn, self._work.ref, self._worker(self._learner), self._heads
            )
            self._on_result(schema, "schema", self._learner)

    def _worker(self, handle: ActorHandle) -> Worker:
        """Return the smallest number that no other decoder has; it keeps it while it lives."""
        if handle not in self._numbers:
            taken = set(self._numbers.values())
            self._numbers[handle] = next(i for i in itertools.count() if i not in taken)
        number = self._numbers[handle]
        return Worker(number, max(self._pool.workers, number + 1))

    def _register(self, handle: ActorHandle, *of_decoder: Worker | Schema | None) -> None:
        register = handle.actor.register
        registered = self._pool.connection.call(register, self._key, self._work.ref, *of_decoder)
        self._on_result(registered, "registered", handle)


def registration_error(error: BaseException) -> IngestError:
    """Return the error to raise if a worker could not take the description."""
    cause = error.cause if isinstance(error, rx.RayTaskError) else error
    if isinstance(cause, EndOfStreamError):
        return DataError(f"fewer records than at the first read: {cause}", transient=True)
    if isinstance(cause, IngestError):
        return cause
    last = str(error).strip().splitlines()[-1]
    return ConfigError(
        f"the workers cannot load the description of the data: {last}; the modules that it uses "
        "must be importable on the workers: install them, or give ray.init a runtime_env with "
        "working_dir or py_modules"
    )


def _put_work(work: Work, put: Callable[[Work], Any]) -> Any:
    try:
        return put(work)
    except Exception as error:
        stages = [type(stage).__name__ for stage in work.stages if not _is_serializable(stage)]
        reason = str(error).strip().splitlines()[0].rstrip(":")
        raise ConfigError(
            f"the description of the data ({', '.join(stages) or 'collate'}) cannot be sent to the "
            f"workers: {reason}; create locks, files and connections on the worker, in a class "
            "given to .map"
        ) from error


def _is_serializable(value: Any) -> bool:
    try:
        ray.cloudpickle.dumps(value)
    except Exception:
        return False
    return True
