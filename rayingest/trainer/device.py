"""Wrap the device operations that prefetching needs in one protocol, and implement it for CUDA.

Owns the copy stream. Knows nothing of batches: the order of the calls belongs to `prefetch`, so
that a test can check the order without a device.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from rayingest.errors import ConfigError

Stream = Any
"""A queue of device work. Only its backend looks inside."""


class Event(Protocol):
    """A point in a stream's work."""

    def query(self) -> bool:
        """Return whether all work before the event is done. Does not wait."""

    def synchronize(self) -> None:
        """Wait until all work before the event is done."""


class Backend(Protocol):
    """One device, with one stream of its own for copies to the device."""

    copy_stream: Stream

    def current_stream(self) -> Stream:
        """Return the stream that the calling thread uses on this device now: the consumer's."""

    def copy(self, host: torch.Tensor) -> torch.Tensor:
        """Allocate a tensor on the device and fill it, both on the copy stream.

        Does not wait if `host` is pinned.
        """

    def record(self, stream: Stream) -> Event:
        """Record an event after all work that was submitted to the stream so far."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Make all further work of the stream start after the event. Does not wait itself."""

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Inform the allocator that the stream uses this tensor, so that its memory stays."""


class CudaBackend:
    """The backend of one CUDA device.

    It creates its copy stream once: a stream per epoch would make reserved memory grow. Every call
    names the device or the stream, because each thread has its own current device.
    """

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", index)
        self.copy_stream: Stream = torch.cuda.Stream(device=self.device)

    def current_stream(self) -> Stream:
        return torch.cuda.current_stream(self.device)

    def copy(self, host: torch.Tensor) -> torch.Tensor:
        # This also sets the stream's device, and restores both afterwards.
        with torch.cuda.stream(self.copy_stream):
            return host.to(self.device, non_blocking=True)

    def record(self, stream: Stream) -> Event:
        return stream.record_event()

    def wait(self, stream: Stream, event: Event) -> None:
        stream.wait_event(event)

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        tensor.record_stream(stream)


def resolve_device(device: str | torch.device) -> torch.device:
    """Return the device of the batches: "cpu", or "cuda" with its index.

    Raises:
        ConfigError: `device` is no device, is of another type, or does not exist here.
    """
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"device={device!r} is not a device; use 'cpu', 'cuda' or 'cuda:<index>'"
        ) from error
    if resolved.type == "cpu":
        return torch.device("cpu")
    if resolved.type != "cuda":
        raise ConfigError(
            f"device={str(device)!r} is not supported; use 'cpu', 'cuda' or 'cuda:<index>'"
        )
    if not torch.cuda.is_available():
        raise ConfigError(
            f"device={str(device)!r}, but PyTorch finds no CUDA device here; "
            "device='cpu' would work"
        )
    index = torch.cuda.current_device() if resolved.index is None else resolved.index
    count = torch.cuda.device_count()
    if index >= count:
        raise ConfigError(
            f"device={str(device)!r}, but this machine has {count} CUDA device(s); "
            f"use an index below {count}"
        )
    return torch.device("cuda", index)


def resolve_pin(pin_memory: bool | None, device: torch.device) -> bool:
    """Return whether to pin host memory; None means: for a CUDA device only.

    Raises:
        ConfigError: `pin_memory` is True and PyTorch finds no CUDA device.
    """
    if pin_memory is None:
        return device.type == "cuda"
    if pin_memory and not torch.cuda.is_available():
        raise ConfigError(
            "pin_memory=True, but PyTorch finds no CUDA device here; leave it out, or use "
            "pin_memory=False"
        )
    return bool(pin_memory)
