"""How workers are lost, and what follows from it for what they were at."""

from __future__ import annotations

import enum


class WorkerFailure(enum.Enum):
    """How a worker was lost; in words, for people."""

    BY_ITSELF = "it ended"
    TOO_LATE = "it was ended because a decode took longer than decode_timeout"
    FOR_MEMORY = "it was ended because its node ran low on memory"
    WITH_NODE = "it is out of reach, with its node"
    DISMISSED = "it was sent away"

    @property
    def deadly(self) -> bool:
        """Whether nothing else is known to have ended it, so that what it was at may have."""
        return self in (WorkerFailure.BY_ITSELF, WorkerFailure.TOO_LATE)

    @property
    def counts(self) -> bool:
        """Whether what it was at has been tried, so that it is not done for ever."""
        return self.deadly or self is WorkerFailure.FOR_MEMORY
