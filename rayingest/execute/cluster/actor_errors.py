"""Which errors of Ray's say that the process which a call was for has ended, or cannot be reached."""

from __future__ import annotations

from ray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    OutOfMemoryError,
    RayActorError,
    WorkerCrashedError,
)

DEATHS = (RayActorError, OutOfMemoryError, WorkerCrashedError, NodeDiedError, LocalRayletDiedError)
"""An actor that the memory monitor ends is reported by an error that is no RayActorError."""
