"""Writes tests/data/tfrecord with a library of its own: `pip install tfrecord`, then, in the
project's folder, `python -m tests.data.make_tfrecord`. `samples` holds the samples that all
formats' tests use.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.format_samples import PARTS

FOLDER = Path(__file__).parent / "tfrecord"


def main() -> None:
    from tfrecord.writer import TFRecordWriter

    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "samples").mkdir(parents=True)
    for number, part in enumerate(PARTS):
        writer = TFRecordWriter(str(FOLDER / "samples" / f"s-{number}.tfrecord"))
        for i, text in part:
            features = {
                "id": (i, "int"),
                "text": (text.encode(), "byte"),
                "many": ([-i, i, 1 << 40], "int"),
            }
            writer.write(features | {"scores": ([0.5] * i, "float")})
        writer.close()


if __name__ == "__main__":
    main()
