"""Writes tests/data/huggingface with the library of that name: `pip install datasets pillow`, then,
in the project's folder, `python -m tests.data.make_huggingface`. Three samples, as a folder of
Arrow files and as Parquet.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from PIL import Image

FOLDER = Path(__file__).parent / "huggingface"


def pixels(i: int) -> np.ndarray:
    return np.full((4, 6, 3), 50 * i, np.uint8)


def main() -> None:
    import datasets

    features = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=["a", "b"]),
        "matrix": datasets.Array2D((2, 3), "float32"),
        "text": datasets.Value("string"),
    }
    samples = [
        {
            "image": Image.fromarray(pixels(i)),
            "label": i % 2,
            "matrix": [[i, 1, 2], [3, 4, 5]],
            "text": f"t{i}",
        }
        for i in range(3)
    ]
    shutil.rmtree(FOLDER, ignore_errors=True)
    data = datasets.Dataset.from_list(samples, features=datasets.Features(features))
    data.save_to_disk(str(FOLDER / "arrow"), num_shards=2)
    data.to_parquet(str(FOLDER / "data.parquet"))


if __name__ == "__main__":
    main()
