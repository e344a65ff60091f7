"""Show progress bars on a terminal that leave no thread behind."""

from __future__ import annotations

from tqdm import tqdm


class Bar(tqdm):
    """A tqdm bar without tqdm's monitor thread.

    The monitor redraws bars that are updated rarely, and it outlives every bar of the process.
    """

    monitor_interval = 0
