"""Writes tests/data/mds with MosaicML's own library: `pip install mosaicml-streaming`, then, in the
project's folder, `python -m tests.data.make_mds`. `plain` and one folder per compression hold the
samples that all formats' tests use, `encodings` two samples of every kind of value.
"""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.support.format_samples import SAMPLES

FOLDER = Path(__file__).parent / "mds"
NUMBERS = ["int", *(f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64))]
NUMBERS += ["float16", "float32", "float64"]


def pixels(i: int) -> np.ndarray:
    return (np.arange(4 * 6 * 3).reshape(4, 6, 3) * (i + 1) % 256).astype(np.uint8)


def encodings(i: int) -> dict[str, tuple[str, Any]]:
    """Encoding and value of each column of the i-th sample."""
    image = Image.fromarray(pixels(i))
    values: dict[str, tuple[str, Any]] = {name: (name, i + 1) for name in NUMBERS}
    values |= {name: (name, i + 0.5) for name in NUMBERS if name.startswith("float")}
    return values | {
        "bytes": ("bytes", bytes([i, 255])),
        "str": ("str", f"ünïcode {i}"),
        "str_int": ("str_int", 10**15 + i),
        "str_float": ("str_float", i + 0.25),
        "str_decimal": ("str_decimal", Decimal(f"{i}.125")),
        "json": ("json", {"i": i, "l": [1, None]}),
        "array": ("ndarray", np.arange(6, dtype=np.float16).reshape(1, 2, 3) + i),
        "array_typed": ("ndarray:int16", np.arange(300 + i, dtype=np.int16)),
        "array_shaped": ("ndarray:float32:2,3", np.arange(6, dtype=np.float32).reshape(2, 3) + i),
        "vector": ("ndarray:uint8:3", np.full(3, i, np.uint8)),
        "pil": ("pil", image),
        "pil_grey": ("pil", image.convert("L")),
        "pil_alpha": ("pil", image.convert("RGBA")),
        "png": ("png", image),
        "jpeg": ("jpeg", image),
        "pngs": ("list[png]", [image] * i),
        "pils": ("list[pil]", [image] * 2),
        "pickled": ("pkl", {"i": i}),
    }


def main() -> None:
    from streaming import MDSWriter

    shutil.rmtree(FOLDER, ignore_errors=True)
    for compression in ("", "zstd", "gz", "bz2", "br", "snappy"):
        folder = str(FOLDER / (compression or "plain"))
        columns = {"id": "int", "text": "str", "unused": "bytes"}
        more = {"compression": compression or None, "hashes": ["sha1"], "size_limit": 5000}
        with MDSWriter(out=folder, columns=columns, progress_bar=False, **more) as writer:
            for i, text in SAMPLES:
                writer.write({"id": i, "text": text, "unused": b"-"})
    columns = {name: encoding for name, (encoding, _) in encodings(0).items()}
    with MDSWriter(
        out=str(FOLDER / "encodings"), columns=columns, hashes=["md5", "xxh3_64"]
    ) as writer:
        for i in range(2):
            writer.write({name: value for name, (_, value) in encodings(i).items()})


if __name__ == "__main__":
    main()
