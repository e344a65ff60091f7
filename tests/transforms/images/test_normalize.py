"""Normalize computes on the device, in both layouts, and refuses other inputs."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from rayingest.errors import ConfigError
from rayingest.transforms import images as ri


def test_normalize():
    """(pixel / 255 - mean) / std per channel, as NCHW in channels-last memory, or NHWC."""
    import torch

    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    images = torch.from_numpy(
        np.random.default_rng(0).integers(0, 256, (2, 5, 4, 3), dtype=np.uint8)
    )
    expected = (images.double() / 255 - torch.tensor(mean).double()) / torch.tensor(std).double()
    normalize = pickle.loads(pickle.dumps(ri.Normalize(mean, std)))
    for _ in range(2):
        result = normalize(images)
        assert result.dtype == torch.float32
        assert result.shape == (2, 3, 5, 4)
        assert result.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(result.permute(0, 2, 3, 1).double(), expected, rtol=0, atol=1e-6)
    half = ri.Normalize(mean, std, dtype="bfloat16", layout="NHWC")(images)
    assert (half.dtype, half.shape) == (torch.bfloat16, (2, 5, 4, 3))
    torch.testing.assert_close(half, expected.bfloat16(), rtol=0.01, atol=0.01)
    assert pickle.loads(pickle.dumps(normalize)) == normalize
    assert (
        repr(normalize)
        == f"Normalize(mean={tuple(mean)}, std={tuple(std)}, dtype='float32', layout='NCHW')"
    )


def test_normalize_refuses_other_inputs():
    """Errors name floats, other layouts and other channel counts."""
    import torch

    normalize = ri.Normalize([0.5], [0.5])
    for images in (
        torch.zeros(1, 2, 2, 1),
        torch.zeros(2, 2, 1).byte(),
        torch.zeros(1, 2, 2, 3).byte(),
    ):
        with pytest.raises(ConfigError, match=r"takes uint8 images \(N, H, W, 1\)"):
            normalize(images)
