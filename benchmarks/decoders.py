"""Compare image backends on one photograph at a time: JPEG to RandomResizedCrop(224) with flips.

    python -m benchmarks.decoders --json runs/bench/images.jsonl

All decoders take turns on each picture, in a rotating order, in one thread, with the same crop. The
figure is CPU time, which other programs disturb least: the ratio Pillow / decoder of one picture,
as median and quartiles. Quality is the PSNR against Pillow's result in dB (99: identical). A
decoder whose library is not installed (opencv-python-headless) is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import simplejpeg
import torch
from PIL import Image
from tqdm import tqdm

import rayingest as ri
from benchmarks.corpus import picture
from benchmarks.rows import append_row, origin, positive, row_file
from benchmarks.turns import spread

SIDE = 224
CROP, FLIP = ri.images.RandomResizedCrop(SIDE), ri.images.RandomHorizontalFlip()
TRANSFORM = ri.images.Compose(CROP, FLIP)
REFERENCE, SAME = "pillow", 99.0
BIG = (2000, 1500)

Read = Callable[[bytes, np.random.Generator, np.ndarray], None]
"""A picture's bytes to uint8[224, 224, 3] in the array given."""


def ours(path: str) -> Read:
    """Use rayingest's transforms with an image backend."""

    def read(data: bytes, rng: np.random.Generator, out: np.ndarray) -> None:
        TRANSFORM(data, rng, out, path)

    return read


def decoded_whole(resize: Callable[[np.ndarray], np.ndarray]) -> Read:
    """Decode the whole picture with libjpeg-turbo, then crop, resize and flip."""

    def read(data: bytes, rng: np.random.Generator, out: np.ndarray) -> None:
        pixels = simplejpeg.decode_jpeg(data)
        left, top, right, bottom = CROP.box(*pixels.shape[:2], rng)
        pixels = resize(pixels[top:bottom, left:right])
        if rng.random() < FLIP.p:
            pixels = pixels[:, ::-1]
        for channel in range(3):
            out[:, :, channel] = pixels[:, :, channel]

    return read


def by_pillow(part: np.ndarray) -> np.ndarray:
    """Resize antialiased, without SIMD."""
    return np.asarray(Image.fromarray(part).resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def by_torch(part: np.ndarray) -> np.ndarray:
    """Resize antialiased, with SIMD."""
    chw = torch.from_numpy(part).permute(2, 0, 1)[None]
    wanted = torch.nn.functional.interpolate(chw, (SIDE, SIDE), mode="bilinear", antialias=True)
    return np.asarray(wanted[0].permute(1, 2, 0))


def by_opencv(part: np.ndarray) -> np.ndarray:
    """Resize with SIMD, without antialiasing."""
    cv2 = importlib.import_module("cv2")
    return np.asarray(cv2.resize(part, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR))


def paths() -> dict[str, Read]:
    """Return what is compared, by name."""
    found = {
        REFERENCE: ours("pillow"),
        "turbo": ours("turbo"),
        "simplejpeg and Pillow's resize": decoded_whole(by_pillow),
        "simplejpeg and torch's resize": decoded_whole(by_torch),
    }
    if importlib.util.find_spec("cv2"):
        importlib.import_module("cv2").setNumThreads(1)
        found["simplejpeg and OpenCV's resize"] = decoded_whole(by_opencv)
    return found


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio of two uint8 images, in dB."""
    error = np.mean((one.astype(np.float32) - other) ** 2)
    return SAME if error == 0 else float(10 * np.log10(255**2 / error))


def compare(pictures: Sequence[bytes], rounds: int, show: str) -> dict[str, dict[str, Any]]:
    """Return for each decoder `ratio` (Pillow's CPU time to its own, a `spread`), `ms`, `psnr`,
    `psnr_min`.
    """
    readers = list(paths().items())
    outs = {name: np.empty((SIDE, SIDE, 3), np.uint8) for name, _ in readers}
    times: dict[str, list[float]] = {name: [] for name in outs}
    quality: dict[str, list[float]] = {name: [] for name in outs}
    for turn in tqdm(range(rounds), desc=show, unit="round", leave=False):
        for number, data in enumerate(pictures):
            at = (number + turn) % len(readers)
            for name, read in readers[at:] + readers[:at]:
                rng = np.random.default_rng((turn, number))
                begun = time.thread_time()
                read(data, rng, outs[name])
                times[name].append(1e3 * (time.thread_time() - begun))
            for name, out in outs.items():
                quality[name].append(psnr(out, outs[REFERENCE]))
    return {
        name: {
            "ratio": spread(
                [theirs / mine for theirs, mine in zip(times[REFERENCE], some, strict=True)]
            ),
            "ms": statistics.median(some),
            "psnr": statistics.median(quality[name]),
            "psnr_min": min(quality[name]),
        }
        for name, some in times.items()
    }


def report(figures: dict[str, dict[str, Any]]) -> str:
    """Return the figures as a table."""
    lines = [
        f"{'path':32}{'Pillow / path':>14} {'middle half':>14}{'ms':>8}{'PSNR':>7}{'least':>7}"
    ]
    for name, row in figures.items():
        ratio = row["ratio"]
        half = f"{ratio['q1']:.2f}..{ratio['q3']:.2f}"
        numbers = f"{row['ms']:>8.2f}{row['psnr']:>7.1f}{row['psnr_min']:>7.1f}"
        lines.append(f"{name:32}{ratio['median']:>14.2f} {half:>14}{numbers}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=int, default=100, help="of about 500x400")
    parser.add_argument("--big", type=int, default=8, help=f"of {BIG[0]}x{BIG[1]}")
    parser.add_argument(
        "--rounds",
        type=positive,
        default=5,
        help="turns of each path on each picture, with another crop",
    )
    parser.add_argument("--json", type=row_file, help="file to which a line of JSON is appended")
    args = parser.parse_args(argv)
    if args.pictures < 1 > args.big:
        parser.error("no picture of either size")
    torch.set_num_threads(1)
    row = origin()
    corpora = {"500x400": [picture(i) for i in range(args.pictures)]}
    corpora["{}x{}".format(*BIG)] = [picture(i, BIG) for i in range(args.big)]
    for size, pictures in corpora.items():
        if pictures:
            row[size] = compare(pictures, args.rounds, size)
            print(
                f"{len(pictures)} pictures of {size}, {args.rounds} crops each\n"
                f"{report(row[size])}\n"
            )
    append_row(args.json, row)


if __name__ == "__main__":
    main()
