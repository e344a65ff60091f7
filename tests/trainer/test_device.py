"""Devices and pinning: what is available is resolved, all else is refused by name."""

import pytest
import torch

from rayingest.errors import ConfigError
from rayingest.trainer.device import resolve_device, resolve_pin


@pytest.fixture
def without_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def with_two_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


def test_the_cpu_is_a_device():
    """Given as text, and as a `torch.device`."""
    assert resolve_device("cpu") == resolve_device(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda")])
def test_cuda_is_refused_where_there_is_none(without_cuda, device):
    """The error names the device that would work."""
    with pytest.raises(ConfigError, match="no CUDA device here; device='cpu' would work"):
        resolve_device(device)


def test_cuda_gets_its_index(with_two_devices):
    """ "cuda" means the current device of the thread that resolves it."""
    assert resolve_device("cuda") == torch.device("cuda", 1)
    assert resolve_device("cuda:0") == torch.device("cuda", 0)
    with pytest.raises(ConfigError, match="'cuda:2', but this machine has 2 CUDA"):
        resolve_device("cuda:2")


@pytest.mark.parametrize("device", ["gpu", "meta", "xla:0", None, "cuda:x"])
def test_unknown_and_unsupported_devices_are_refused(device):
    """The error names the devices that are allowed."""
    with pytest.raises(ConfigError, match="'cpu', 'cuda' or 'cuda:<index>'"):
        resolve_device(device)


def test_pinning_follows_the_device_by_default(without_cuda):
    """The CPU gets plain memory without a message; pinning without CUDA is an error."""
    assert resolve_pin(None, torch.device("cpu")) is False
    assert resolve_pin(False, torch.device("cpu")) is False
    assert resolve_pin(None, torch.device("cuda", 0)) is True
    assert resolve_pin(False, torch.device("cuda", 0)) is False
    with pytest.raises(ConfigError, match="pin_memory=True"):
        resolve_pin(True, torch.device("cpu"))


def test_host_batches_can_be_pinned(with_two_devices):
    """A loop that copies batches itself may need pinned ones."""
    assert resolve_pin(True, torch.device("cpu")) is True
