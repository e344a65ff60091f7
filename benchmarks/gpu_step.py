"""Time a training step fed by rayingest beside the same step on data that is on the device.

    python -m benchmarks.gpu_step --json row.jsonl

Shows whether the copy to the device is hidden. Needs PyTorch and NumPy, but neither Ray nor a
cluster: batches of uint8 images are in a file, a thread copies each into a page-locked slot, as the
feeder does, and the loader's own code takes it to the device. The contestants take turns at
training a convolutional network in half precision: resident batches, rayingest, and a plain
`.to(device)`. A figure is the median step time of a round to that of the resident batches; the
target is 1.01. Page-locked and reserved device memory must not grow after the first round. Takes
about 3 minutes.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from rayingest.plan.protocols import Batch
from rayingest.trainer.loader import Loader
from rayingest.trainer.prefetch import SlotPool

RESIDENT = 4
"""Batches on the device that the first contestant goes round."""


class FileSource:
    """Endless batches from a file; a thread copies them into slots, `depth` ahead."""

    def __init__(self, images: np.ndarray, batch: int, slots: SlotPool, depth: int = 3) -> None:
        self._images, self._batch, self._slots = images, batch, slots
        self._ready: queue.Queue[Batch] = queue.Queue(depth)
        self._closed = False
        self._thread = threading.Thread(target=self._fill, daemon=True)

    def start(self, epoch: int, step: int) -> None:
        """Start at the beginning; there is no other start."""
        self._thread.start()

    def get(self) -> Batch:
        """Return the next batch."""
        return self._ready.get()

    def ready(self) -> bool:
        """Return whether a batch is ready."""
        return not self._ready.empty()

    def stats(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        while self._thread.is_alive():
            while not self._ready.empty():
                self._ready.get()
            self._thread.join(0.05)

    def _fill(self) -> None:
        step, steps = 0, len(self._images) // self._batch
        while not self._closed:
            at = step % steps * self._batch
            rows = self._images[at : at + self._batch]
            slot = self._slots.lease(rows.nbytes + 8 * self._batch)
            image, label = slot.array(rows.shape, rows.dtype), slot.array((self._batch,), np.int64)
            image[...] = rows
            label[...] = np.arange(at, at + self._batch) % 1000
            self._ready.put(Batch(0, step, {"image": image, "label": label}, buffer=slot))
            step += 1


class Endless:
    """A plan of one endless epoch."""

    rank, world_size = 0, 1

    def steps_in(self, epoch: int) -> int:
        """Return more steps than any run takes."""
        return 1 << 40

    def state(self, epoch: int, step: int) -> dict[str, Any]:
        """Return a position."""
        return {"epoch": epoch, "step": step}

    def position(self, state: dict[str, Any]) -> tuple[int, int]:
        """Return the position in a state."""
        return state["epoch"], state["step"]


def network(width: int, depth: int) -> nn.Module:
    """Return a convolutional network at falling resolution with a thousand classes."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 4, 3), nn.BatchNorm2d(width), nn.ReLU()]
    for stage in range(3):
        wide = width << stage
        for _ in range(depth):
            layers += [nn.Conv2d(wide, wide, 3, 1, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()]
        layers += [nn.Conv2d(wide, 2 * wide, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 1000))


@dataclass
class Training:
    """A network in training on a device."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    device: torch.device

    def step(self, batch: dict[str, Any]) -> None:
        """Run forward and backward, and update the weights."""
        images = (
            batch["image"].to(torch.float32).div_(255).contiguous(memory_format=torch.channels_last)
        )
        with torch.autocast("cuda", torch.bfloat16, enabled=self.device.type == "cuda"):
            loss = functional.cross_entropy(self.model(images), batch["label"])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def settle(self) -> None:
        """Wait until the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def seconds_a_step(training: Training, take: Callable[[], dict[str, Any]], steps: int) -> float:
    """Return seconds per step in the steady state, after a few steps that are not timed."""
    for _ in range(5):
        training.step(take())
    training.settle()
    begun = time.perf_counter()
    for _ in range(steps):
        training.step(take())
    training.settle()
    return (time.perf_counter() - begun) / steps


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run all turns; return the figures."""
    device = torch.device(args.device)
    rows = args.batch * (RESIDENT + 4)
    shape = (rows, 3, args.size, args.size)
    np.random.default_rng(0).integers(0, 256, shape, np.uint8).tofile(folder / "images")
    images = np.memmap(folder / "images", np.uint8, "r", shape=shape)
    model = network(args.width, args.depth).to(device, memory_format=torch.channels_last)
    training = Training(model, torch.optim.SGD(model.parameters(), 0.01), device)
    slots = SlotPool(pin=device.type == "cuda")
    with Loader(
        FileSource(images, args.batch, slots), Endless(), device=args.device, slots=slots
    ) as loader:
        ours: Iterator[dict[str, Any]] = iter(loader)
        held = [next(ours) for _ in range(RESIDENT)]
        resident, plain = _cycle(held), _plain(images, args.batch, device)
        contestants = {"resident": resident, "rayingest": ours, "plain .to(device)": plain}
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        grown = []
        for _ in range(args.rounds):
            for name, batches in contestants.items():
                seconds[name].append(seconds_a_step(training, batches.__next__, args.steps))
            grown.append(
                (slots.nbytes, torch.cuda.memory_reserved(device) if device.type == "cuda" else 0)
            )
    ratios = {
        name: statistics.median(
            one / base for one, base in zip(some, seconds["resident"], strict=True)
        )
        for name, some in seconds.items()
    }
    return {
        "step_ms": {
            name: round(1e3 * statistics.median(some), 3) for name, some in seconds.items()
        },
        "ratio": {name: round(ratio, 4) for name, ratio in ratios.items()},
        "slot_bytes": grown[-1][0],
        "slot_bytes_grown": grown[-1][0] - grown[0][0],
        "device_bytes_grown": grown[-1][1] - grown[0][1],
    }


def _cycle(batches: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    while True:
        yield from batches


def _plain(images: np.ndarray, batch: int, device: torch.device) -> Iterator[dict[str, Any]]:
    while True:
        for at in range(0, len(images), batch):
            image = torch.from_numpy(np.array(images[at : at + batch])).to(device)
            yield {"image": image, "label": torch.arange(at, at + batch).remainder(1000).to(device)}


def main() -> int:
    """Run the command line; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--device", default="cuda", help="'cpu' tries the command, but its figures say nothing"
    )
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=224, help="pixels of an image's side")
    parser.add_argument("--width", type=int, default=128, help="of the network's first layer")
    parser.add_argument("--depth", type=int, default=4, help="convolutions at each resolution")
    parser.add_argument("--steps", type=int, default=60, help="timed in a turn")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contestant")
    parser.add_argument("--json", type=Path, help="file to which a line of JSON is appended")
    args = parser.parse_args()
    if args.device != "cpu" and not torch.cuda.is_available():
        parser.error("PyTorch finds no CUDA device; --device cpu tries the command, without copies")
    with tempfile.TemporaryDirectory() as folder:
        found = measure(args, Path(folder))
    name = torch.cuda.get_device_name() if args.device != "cpu" else "cpu"
    row = {"device": name, "torch": torch.__version__, "command": sys.argv, **found}
    print(json.dumps(row))
    if args.json:
        with args.json.open("a") as file:
            file.write(json.dumps(row) + "\n")
    return int(
        row["ratio"]["rayingest"] > 1.01
        or bool(row["slot_bytes_grown"] or row["device_bytes_grown"])
    )


if __name__ == "__main__":
    sys.exit(main())
