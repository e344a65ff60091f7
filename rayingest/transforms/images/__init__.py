"""Image transforms: picklable values that turn encoded bytes or arrays into uint8 arrays.

The registry of `ri.images` and of the names in a configuration: a new transform is exported here.
"""

from rayingest.transforms.images.geometry import (
    CenterCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from rayingest.transforms.images.normalize import Normalize
from rayingest.transforms.images.transform import Compose, Decode, Transform

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


def __dir__() -> list[str]:
    return __all__  # without the modules, so that completion shows the transforms alone
