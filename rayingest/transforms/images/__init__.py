"""Image transforms: picklable values that turn encoded bytes or arrays into uint8 arrays."""

from rayingest.transforms.images.normalize import Normalize
from rayingest.transforms.images.operations import (
    CenterCrop,
    Compose,
    Decode,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from rayingest.transforms.images.transform import Transform

__all__ = [
    "CenterCrop",
    "Compose",
    "Decode",
    "Normalize",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resize",
    "Transform",
]
