"""Devices and pinning that cannot be had are refused by name."""

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
    """As text and as a device."""
    assert resolve_device("cpu") == resolve_device(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda")])
def test_cuda_that_is_not_there_is_refused(without_cuda, device):
    """The message says what would work."""
    with pytest.raises(ConfigError, match="no CUDA device here; device='cpu' would work"):
        resolve_device(device)


def test_cuda_gets_its_index(with_two_devices):
    """ "cuda" is the thread's current device, once and for all."""
    assert resolve_device("cuda") == torch.device("cuda", 1)
    assert resolve_device("cuda:0") == torch.device("cuda", 0)
    with pytest.raises(ConfigError, match="'cuda:2', but this machine has 2 CUDA"):
        resolve_device("cuda:2")


@pytest.mark.parametrize("device", ["gpu", "meta", "xla:0", None, "cuda:x"])
def test_what_is_no_served_device_is_refused(device):
    """Unknown names and other kinds alike."""
    with pytest.raises(ConfigError, match="'cpu', 'cuda' or 'cuda:<index>'"):
        resolve_device(device)


def test_pinning_follows_the_device_unless_asked_for(without_cuda):
    """Plain memory on the CPU, quietly; an explicit wish that cannot be met is an error."""
    assert resolve_pin(None, torch.device("cpu")) is False
    assert resolve_pin(False, torch.device("cpu")) is False
    assert resolve_pin(None, torch.device("cuda", 0)) is True
    assert resolve_pin(False, torch.device("cuda", 0)) is False
    with pytest.raises(ConfigError, match="pin_memory=True"):
        resolve_pin(True, torch.device("cpu"))


def test_pinning_for_the_cpu_path_can_be_asked_for(with_two_devices):
    """A loop that moves batches itself may want them pinned."""
    assert resolve_pin(True, torch.device("cpu")) is True
