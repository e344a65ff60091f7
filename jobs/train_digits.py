"""Train a small network on handwritten digits: two ranks of Ray Train, each fed by rayingest.

    python jobs/train_digits.py
    python jobs/train_digits.py --resume
    RAY_AUTH_MODE=token ray job submit --address http://127.0.0.1:8265 --working-dir . \\
        -- python jobs/train_digits.py

Every run has a folder under `--folder` with Ray Train's checkpoints, which hold the position in the
data beside the weights, and `steps.jsonl`, a line for each step. `--resume` continues after the
last checkpoint of the latest run (or of `--run`) exactly as if the run had not stopped.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
import torch.distributed
from digits import write_shards
from digits_runs import STEPS, connect, run_name
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn
from torch.nn import functional

import rayingest as ri
from rayingest.api.config import Section

CHECKPOINT = "checkpoint.pt"

_log = logging.getLogger("digits")


class ClusterSettings(Section):
    """Arguments of `ray.init` if no cluster is connected."""

    num_cpus: int
    object_store_memory: int


class Settings(Section):
    """The section `job` of the configuration; both intervals are in steps."""

    data: str
    held_out: str
    ranks: int
    seed: int
    learning_rate: float
    validate_every: int
    checkpoint_every: int
    cluster: ClusterSettings


@dataclass(frozen=True)
class Job:
    """What the ranks receive. `stop_after`: stop after this step without a checkpoint, as if
    killed.
    """

    settings: Settings
    train: ri.Dataset
    options: dict[str, Any]
    held_out: ri.Dataset
    held_out_options: dict[str, Any]
    run: str
    stop_after: int | None


class Net(nn.Module):
    """Two convolutions and two linear layers, 38,000 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return scores (N, 10) of the ten digits for images (N, 8, 8, 1)."""
        return self.layers(
            images.reshape(len(images), 1, 8, 8)
        )  # one channel, first or last, is the same memory


def train(given: dict[str, Any]) -> None:
    """Train one rank, from the start or from Ray Train's checkpoint."""
    job: Job = given["job"]
    settings, options = job.settings, dict(job.options)
    torch.manual_seed(settings.seed)
    model = prepare_model(Net())
    optimizer = torch.optim.Adam(model.parameters())
    workers = options.pop("workers", 2)
    with (
        ri.Pool(workers) if workers else nullcontext() as pool,
        job.train.loader(workers=workers, pool=pool, **options) as loader,
        job.held_out.loader(workers=workers, pool=pool, **job.held_out_options) as held_out,
    ):
        restore(model, optimizer, loader)
        log, waiting = StepLog(Path(job.run) / STEPS, done(loader)), Waiting(loader)
        last = options["epochs"] * len(loader)
        while loader.epoch < options["epochs"]:
            for batch in loader:
                waiting.first_has_come()
                step = done(loader)
                loss = functional.cross_entropy(model(batch["image"]), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.param_groups[0]["lr"] = settings.learning_rate * (
                    0.5 + 0.5 * math.cos(math.pi * step / last)
                )
                optimizer.step()
                log.add(step, loss, batch)
                if step % settings.validate_every == 0 and step < last:
                    accuracy = measure(model, held_out)
                    log.tell(
                        "step %d of %d: loss %.4f, accuracy %.2f %%",
                        step,
                        last,
                        loss.item(),
                        accuracy,
                    )
                if step % settings.checkpoint_every == 0 and step < last:
                    report(job, model, optimizer, loader, {"step": step})
                if step == job.stop_after:
                    return
        figures = {"step": last, "accuracy": measure(model, held_out), **waiting.figures()}
        report(job, model, optimizer, loader, figures)


def done(loader: ri.Loader) -> int:
    """Return the number of steps done, with the current one."""
    return loader.epoch * len(loader) + loader.step


def measure(model: nn.Module, held_out: ri.Loader) -> float:
    """Return the percentage of held-out digits that the network recognises, over all ranks."""
    counts = torch.zeros(2, dtype=torch.int64)  # right, all
    with torch.no_grad():
        for batch in held_out:
            guessed = plain(model)(batch["image"]).argmax(1)
            counts += torch.tensor([int((guessed == batch["label"]).sum()), len(guessed)])
    torch.distributed.all_reduce(counts)
    return 100 * float(counts[0] / counts[1])


def plain(model: nn.Module) -> nn.Module:
    """Return the network without its synchronising wrapper."""
    return getattr(model, "module", model)


def restore(model: nn.Module, optimizer: torch.optim.Optimizer, loader: ri.Loader) -> None:
    """Load Ray Train's checkpoint, if it has one: of a resumed run, or of a rank that died."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return
    with checkpoint.as_directory() as folder:
        saved = torch.load(Path(folder) / CHECKPOINT, weights_only=True)
    plain(model).load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.load_state_dict(saved["data"])


def report(
    job: Job,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: ri.Loader,
    figures: dict[str, float],
) -> None:
    """Report the figures and a checkpoint to Ray Train; rank 0 saves the weights, which all ranks
    share.
    """
    if loader.rank:
        ray.train.report(figures)
        return
    with tempfile.TemporaryDirectory() as folder:
        saved = {
            "model": plain(model).state_dict(),
            "optimizer": optimizer.state_dict(),
            "data": loader.state_dict(),
        }
        torch.save(saved, Path(folder) / CHECKPOINT)
        checkpoint = ray.train.Checkpoint.from_directory(folder)
        name = f"checkpoint_{done(loader):08d}"
        ray.train.report(
            figures, checkpoint, checkpoint_dir_name=name, checkpoint_upload_fn=Publish(job.run)
        )


@dataclass(frozen=True)
class Publish:
    """Moves a checkpoint into the run's folder under its name only when it is complete."""

    run: str

    def __call__(self, checkpoint: ray.train.Checkpoint, name: str) -> ray.train.Checkpoint:
        final, aside = Path(self.run) / name, Path(self.run) / f".{name}.tmp"
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(checkpoint.path, aside)
        shutil.rmtree(final, ignore_errors=True)  # of steps that are now done again
        aside.rename(final)
        return ray.train.Checkpoint.from_directory(str(final))


class StepLog:
    """Rank 0's `steps.jsonl`: step, loss and ordinals of the samples; a resume cuts later lines
    off.
    """

    def __init__(self, path: Path, step: int) -> None:
        self._writes = ray.train.get_context().get_world_rank() == 0
        if not self._writes:
            return
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        aside = path.with_suffix(".tmp")
        aside.write_text("".join(lines[:step]))
        aside.rename(path)
        self._file = path.open("a", buffering=1)

    def add(self, step: int, loss: torch.Tensor, batch: dict[str, Any]) -> None:
        """Add a line."""
        if self._writes:
            line = {"step": step, "loss": loss.item(), "samples": batch["__index__"].tolist()}
            self._file.write(json.dumps(line) + "\n")

    def tell(self, line: str, *values: Any) -> None:
        """Log once, not once a rank."""
        if self._writes:
            _log.info(line, *values)


class Waiting:
    """How long the loop waited for its first batch, while workers start, and afterwards."""

    def __init__(self, loader: ri.Loader) -> None:
        self._loader = loader
        self._first: float | None = None

    def first_has_come(self) -> None:
        """Note the time of the first batch; later calls do nothing."""
        if self._first is None:
            self._first = self._loader.stats()["wait_seconds"]

    def figures(self) -> dict[str, float]:
        """Return `first_batch_seconds`, and `wait_share` of the time since, 0 to 1; means over
        ranks.
        """
        stats, first = self._loader.stats(), self._first or 0.0
        waited = stats["wait_seconds"] - first
        share = waited / max(waited + stats["step_seconds"], 1e-9)
        mean = torch.tensor([first, share], dtype=torch.float64)
        torch.distributed.all_reduce(mean)
        first, share = (mean / self._loader.world_size).tolist()
        return {"first_batch_seconds": first, "wait_share": share}


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the job; return the last reported figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", default="configs/digits_cpu.yaml")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("runs/digits"),
        help="folder of the runs, shared by all nodes",
    )
    parser.add_argument(
        "--run", help="the run's name; default: the date and time, or with --resume the latest"
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue after the last checkpoint of a run"
    )
    parser.add_argument(
        "--stop-after", type=int, metavar="STEP", help="stop there as if killed, to try --resume"
    )
    asked = parser.parse_args(arguments)
    config = ri.load_config(asked.config)
    settings = config.job_as(Settings)
    held_out = ri.load_config(settings.held_out)
    folder = asked.folder.absolute()
    name = run_name(folder, asked.run, asked.resume)
    write_shards(Path(settings.data))
    connect(settings.cluster.num_cpus, settings.cluster.object_store_memory)
    job = Job(
        settings,
        config.dataset(),
        config.loader_options(),
        held_out.dataset(),
        held_out.loader_options(),
        str(folder / name),
        asked.stop_after,
    )
    trainer = TorchTrainer(
        train,
        train_loop_config={"job": job},
        scaling_config=ray.train.ScalingConfig(
            num_workers=settings.ranks, resources_per_worker={"CPU": 1}
        ),
        run_config=ray.train.RunConfig(
            name=name,
            storage_path=str(folder),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
            failure_config=ray.train.FailureConfig(max_failures=1),
        ),
    )
    figures = trainer.fit().metrics or {}
    if "accuracy" in figures:
        print(
            f"accuracy {figures['accuracy']:.2f} % on held-out digits after "
            f"{figures['step']} steps; "
            f"{figures['wait_share']:.1%} of the time spent waiting for data, "
            f"after {figures['first_batch_seconds']:.1f} s for the first batch (run {name})"
        )
    return figures


if __name__ == "__main__":
    main()
