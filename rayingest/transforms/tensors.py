"""What is torch's in a sample, as what travels: arrays of numpy, and tensors without gradients.

Imports no torch: a tensor is told by what it can do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})


def as_array(value: Any) -> np.ndarray:
    """A tensor, or whatever else gives itself as an array, as numpy has it; not copied where that can be.

    A tensor's gradients are left behind. TypeError for a tensor of a type of number that numpy has not, which says what
    would do.
    """
    if not hasattr(value, "detach"):
        return np.asarray(value)
    tensor = value.detach().cpu()
    try:
        return np.asarray(tensor.numpy())
    except TypeError as error:
        if "ScalarType" not in str(error):  # as of a sparse one
            raise
        raise TypeError(
            f"numpy has no {str(tensor.dtype).removeprefix('torch.')}: give it as .float(), or its bits as "
            f".view(torch.int{8 * tensor.element_size()}) and view these back in after_copy"
        ) from error


def detached(value: Any) -> Any:
    """The value with every tensor in its lists, tuples and dicts cut from its gradients; itself where none has any."""
    if hasattr(value, "detach"):
        return value.detach() if getattr(value, "requires_grad", False) else value
    if isinstance(value, (list, tuple)):
        if _PLAIN.issuperset(map(type, value)):
            return value
        parts = [detached(part) for part in value]
        if all(part is before for part, before in zip(parts, value, strict=True)):
            return value
        return parts if isinstance(value, list) else getattr(type(value), "_make", tuple)(parts)
    if isinstance(value, dict):
        parts_by_name = {name: detached(part) for name, part in value.items()}
        return (
            value
            if all(parts_by_name[name] is part for name, part in value.items())
            else parts_by_name
        )
    return value
