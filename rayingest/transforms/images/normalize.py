"""Normalise images on the device, after the copy: they travel as uint8, a quarter of float32.

Owns the arithmetic, and the constants that it keeps per device. Imports torch in the first call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rayingest.errors import ConfigError


@dataclass(frozen=True)
class Normalize:
    """Convert uint8 images to floats on the device: (pixel / 255 - mean) / std per channel.

    Call it with a torch uint8 tensor (N, H, W, C). The result is a new tensor of `dtype` on the
    same device. With layout "NCHW" its shape is (N, C, H, W), and its memory stays channels last,
    which convolutions run fastest on; with "NHWC" its shape is the input's.
    """

    mean: Sequence[float]
    std: Sequence[float]
    dtype: str = "float32"
    layout: str = "NCHW"
    _constants: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(map(float, self.mean)))
        object.__setattr__(self, "std", tuple(map(float, self.std)))
        if not len(self.mean) == len(self.std) > 0 or min(self.std) <= 0:
            raise ConfigError(
                f"mean={self.mean}, std={self.std}: give one of each per channel, std above 0"
            )
        if self.dtype not in {"float16", "bfloat16", "float32", "float64"}:
            raise ConfigError(f"dtype {self.dtype!r}: choose float16, bfloat16, float32 or float64")
        if self.layout not in {"NCHW", "NHWC"}:
            raise ConfigError(f"layout {self.layout!r}: choose NCHW or NHWC")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_constants": {}}  # a device's tensors stay in the process

    def __call__(self, images: Any) -> Any:
        import torch

        channels = len(self.mean)
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[-1] != channels:
            raise ConfigError(
                f"{self!r} takes uint8 images (N, H, W, {channels}), not {images.dtype} of shape "
                f"{tuple(images.shape)}"
            )
        work = torch.float64 if self.dtype == "float64" else torch.float32
        device = str(images.device)
        if device not in self._constants:
            factor = torch.tensor([1 / (255 * std) for std in self.std], dtype=work)
            shift = torch.tensor(
                [-mean / std for mean, std in zip(self.mean, self.std, strict=True)], dtype=work
            )
            self._constants[device] = (factor.to(images.device), shift.to(images.device))
        factor, shift = self._constants[device]
        result = images.to(work).mul_(factor).add_(shift).to(getattr(torch, self.dtype))
        return result.permute(0, 3, 1, 2) if self.layout == "NCHW" else result
