"""The samples that every format's test data hold. Standard library alone: the scripts that make data use it too."""

from __future__ import annotations

import random

COUNT = 40
TEXTS = [random.Random(i).randbytes(20 + 5 * i).hex() for i in range(COUNT)]
LONGEST = max(map(len, TEXTS))
SAMPLES = list(enumerate(TEXTS))
"""`(id, text)` of every sample."""

PARTS = (SAMPLES[:17], SAMPLES[17:18], SAMPLES[18:])
"""The samples of three shards."""
