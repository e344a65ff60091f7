"""Stands in for torchvision, which `streaming` imports for data sets that are not used here: PyPI's
builds of it do not load beside a torch for CPUs.
"""

import sys
from unittest.mock import Mock

import transformers  # noqa: F401 - which `streaming` imports too, and which asks whether torchvision is there

NAMES = (
    "torchvision",
    "torchvision.datasets",
    "torchvision.transforms",
    "torchvision.transforms.functional",
)
sys.modules.update({name: Mock(VisionDataset=object) for name in NAMES})
