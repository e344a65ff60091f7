"""Replace torchvision, which `streaming` imports for data sets that are not used here.

PyPI's builds of torchvision do not load beside a torch for CPUs.
"""

import sys
from unittest.mock import Mock

# `streaming` imports it too; it must look for torchvision before the replacement is there.
import transformers  # noqa: F401

NAMES = (
    "torchvision",
    "torchvision.datasets",
    "torchvision.transforms",
    "torchvision.transforms.functional",
)
sys.modules.update({name: Mock(VisionDataset=object) for name in NAMES})
