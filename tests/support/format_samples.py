"""The samples of every format's test data. Only the standard library: scripts that write data use
it too.
"""

from __future__ import annotations

import random

COUNT = 40
TEXTS = [random.Random(i).randbytes(20 + 5 * i).hex() for i in range(COUNT)]
LONGEST = max(map(len, TEXTS))
SAMPLES = list(enumerate(TEXTS))
"""`(id, text)` of every sample."""

PARTS = (SAMPLES[:17], SAMPLES[17:18], SAMPLES[18:])
"""The samples of three shards."""
