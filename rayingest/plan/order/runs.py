"""Runs of equal entries in arrays, side by side."""

from __future__ import annotations

import numpy as np


def runs(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each run of rows that are equal in all columns begins, and how many rows it has; int64 each."""
    changed = np.zeros(max(0, len(columns[0]) - 1), bool)
    for column in columns:
        changed |= column[1:] != column[:-1]
    begins = np.flatnonzero(changed)
    starts = np.zeros(min(1, len(columns[0])) + len(begins), np.int64)
    np.add(begins, 1, out=starts[1:])
    counts = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], out=counts[:-1])
    counts[-1:] = len(columns[0]) - starts[-1:]
    return starts, counts
