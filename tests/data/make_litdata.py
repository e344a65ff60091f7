"""Writes tests/data/litdata with Lightning's own library: `pip install litdata`, then, in the
project's folder, `python -m tests.data.make_litdata`. `samples` holds the samples that all formats'
tests use, `kinds` two of every kind.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.support.format_samples import PARTS

FOLDER = Path(__file__).parent / "litdata"


def pixels(i: int) -> np.ndarray:
    return (np.arange(4 * 6 * 3).reshape(4, 6, 3) * (i + 1) % 256).astype(np.uint8)


def kinds(i: int) -> dict[str, Any]:
    import torch

    return {
        "int": i,
        "float": i + 0.5,
        "bool": i == 1,
        "str": f"ü{i}",
        "bytes": bytes([i]),
        "matrix": np.arange(6, dtype=np.float16).reshape(2, 3) + i,
        "vector": np.arange(3 + i, dtype=np.int16),
        "tensor": torch.arange(4, dtype=torch.int32).reshape(2, 2) + i,
        "row": torch.arange(2 + i, dtype=torch.float64),
        "image": Image.fromarray(pixels(i)),
        "inside": {"numbers": [i, 2], "texts": ["a", f"b{i}"], "mixed": [1, "x", None]},
        "pair": (i, "second"),
    }


def main() -> None:
    from litdata.streaming.writer import BinaryWriter

    shutil.rmtree(FOLDER, ignore_errors=True)
    writer = BinaryWriter(str(FOLDER / "samples"), chunk_size=17)
    for number, (i, text) in enumerate(sample for part in PARTS for sample in part):
        writer[number] = {"id": i, "text": text, "unused": b"-"}
    writer.done()
    writer.merge()
    writer = BinaryWriter(str(FOLDER / "packed"), chunk_size=17)
    for number, (i, text) in enumerate(sample for part in PARTS for sample in part):
        writer[number] = {"id": i, "text": text, "vector": np.zeros(2)}
    writer.done()
    writer.merge()
    writer = BinaryWriter(str(FOLDER / "kinds"), chunk_size=2)
    for i in range(2):
        writer[i] = kinds(i)
    writer.done()
    writer.merge()


if __name__ == "__main__":
    main()
