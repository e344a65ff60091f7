"""The members of a pool: which actors there are, and who is told of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rayingest.errors import IngestError
from rayingest.execute.cluster.node_info import Site
from rayingest.execute.cluster.reader import THREADS
from rayingest.plan.dispatch.failures import WorkerFailure

Role = Literal["reader", "decoder"]

DECODER_SLOTS = 2
"""Tasks a decoder has at a time: one to do, one to begin with at once."""


@dataclass(eq=False)
class Member:
    """One actor of a pool; `site` is where it runs, known once it does; on none of the nodes that it `avoids`."""

    name: str
    role: Role
    actor: Any
    site: Site = field(default_factory=lambda: Site("", 0.0))
    avoids: tuple[str, ...] = ()

    @property
    def node(self) -> str:
        return self.site.node

    @property
    def slots(self) -> int:
        return THREADS if self.role == "reader" else DECODER_SLOTS


class Subscriber(Protocol):
    """Who wants to know about the pool's members. Called from any thread; must return at once."""

    def joined(self, member: Member) -> None:
        """The member runs."""

    def lost(self, member: Member, loss: WorkerFailure) -> None:
        """The member is gone."""

    def failed(self, error: IngestError) -> None:
        """The pool cannot go on."""
