"""Buckets: inside a window, samples of similar length in the same step.

A window's samples, as they are permuted, are cut into its steps by length: the shortest go together, and so on. Which
of these groups comes when is drawn by turns that are the same for all lanes, so that a step's lanes give samples of
about the same length, though they begin windows at different steps. Nothing but the order inside windows changes.
"""

from __future__ import annotations

import numpy as np

from rayingest.plan.order.keys import fold, permutation


def turns(first: int, steps: int, window_steps: int, seed: int, cycle: int) -> np.ndarray:
    """int64[steps]: a number for each step from `first` on, distinct in any `window_steps` steps in a row."""
    drawn = permutation(window_steps, fold("buckets", seed, cycle))
    return np.asarray(drawn[(first + np.arange(steps)) % window_steps])


def by_length(lengths: np.ndarray, rows: int, turn: np.ndarray) -> np.ndarray:
    """int64[n]: the samples of these lengths in the order in which they are taken, `rows` a step, one `turn` a step.

    The step with the least turn has the shortest samples. In a step, samples are in the order in which they came; those
    left after the last step stay where they are.
    """
    full = len(turn) * rows
    groups = np.sort(np.argsort(lengths[:full], kind="stable").reshape(len(turn), rows), axis=1)
    place = np.argsort(np.argsort(turn, kind="stable"), kind="stable")
    return np.concatenate([groups[place].ravel(), np.arange(full, len(lengths))])
