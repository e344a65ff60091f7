"""The few things that prefetching needs from a device, behind one protocol, and CUDA's version of them.

Owns the copy stream. Refuses to know about batches: which order the calls come in is `prefetch`'s matter, so that the
order can be tested without a device.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from rayingest.errors import ConfigError

Stream = Any
"""A queue of device work; opaque outside its backend."""


class Event(Protocol):
    """A mark in a stream."""

    def query(self) -> bool:
        """Whether everything before the mark is done. Does not wait."""

    def synchronize(self) -> None:
        """Wait until everything before the mark is done."""


class Backend(Protocol):
    """One device with one stream of our own for copies to it."""

    copy_stream: Stream

    def current_stream(self) -> Stream:
        """The stream on which the calling thread works on this device now: the consumer's."""

    def copy(self, host: torch.Tensor) -> torch.Tensor:
        """A new tensor on the device, allocated and filled on the copy stream. Does not wait where `host` is pinned."""

    def record(self, stream: Stream) -> Event:
        """A mark behind everything that the stream has been given so far."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Let what the stream is given from now on begin only after the mark. Does not wait itself."""

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Tell the allocator that the stream uses this tensor, so that its memory outlives that use."""


class CudaBackend:
    """The backend of one CUDA device. The copy stream is made here, once: one per epoch would grow reserved memory.

    Every call names the device or the stream, because the current device differs from thread to thread.
    """

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", index)
        self.copy_stream: Stream = torch.cuda.Stream(device=self.device)

    def current_stream(self) -> Stream:
        return torch.cuda.current_stream(self.device)

    def copy(self, host: torch.Tensor) -> torch.Tensor:
        with torch.cuda.stream(
            self.copy_stream
        ):  # sets the stream's device too, and puts back what was before
            return host.to(self.device, non_blocking=True)

    def record(self, stream: Stream) -> Event:
        return stream.record_event()

    def wait(self, stream: Stream, event: Event) -> None:
        stream.wait_event(event)

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        tensor.record_stream(stream)


def resolve_device(device: str | torch.device) -> torch.device:
    """The device that batches are handed out on: "cpu", or "cuda" with its index filled in.

    Raises:
        ConfigError: not a device, one of another kind, or not there.
    """
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"device={device!r} is not a device; 'cpu', 'cuda' and 'cuda:<index>' are"
        ) from error
    if resolved.type == "cpu":
        return torch.device("cpu")
    if resolved.type != "cuda":
        raise ConfigError(
            f"device={str(device)!r} is not served; 'cpu', 'cuda' and 'cuda:<index>' are"
        )
    if not torch.cuda.is_available():
        raise ConfigError(
            f"device={str(device)!r}, but PyTorch sees no CUDA device here; device='cpu' would work"
        )
    index = torch.cuda.current_device() if resolved.index is None else resolved.index
    if index >= torch.cuda.device_count():
        raise ConfigError(
            f"device={str(device)!r}, but there are {torch.cuda.device_count()} CUDA devices"
        )
    return torch.device("cuda", index)


def resolve_pin(pin_memory: bool | None, device: torch.device) -> bool:
    """Whether host memory is pinned: as asked for; where nothing was said, for a CUDA device only.

    Raises:
        ConfigError: pinning was asked for and there is no CUDA to pin for.
    """
    if pin_memory is None:
        return device.type == "cuda"
    if pin_memory and not torch.cuda.is_available():
        raise ConfigError(
            "pin_memory=True, but PyTorch sees no CUDA device here; leave it out, or pin_memory=False"
        )
    return bool(pin_memory)
