"""Progress bars on a terminal. Owns nothing but that they leave no thread behind."""

from __future__ import annotations

from tqdm import tqdm


class Bar(tqdm):
    """tqdm's, without its monitor: a thread that redraws bars that are seldom updated, and outlives them all."""

    monitor_interval = 0
