"""Loaders in the hands of frameworks that expect DataLoaders. Those that are not installed are
skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import rayingest as ri

os.environ["HF_HUB_OFFLINE"] = "1"  # read when its library is imported


class Squares:
    """Forty items."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> dict[str, float]:
        return {"x": float(i * i)}


TRAIN = ri.from_torch(Squares()).shuffle(seed=3).batch(4)
HELD_OUT = ri.from_torch(Squares()).take(32).batch(16)
STEPS = 10


def indices(batches: Iterable[dict[str, Any]]) -> list[list[int]]:
    return [batch["__index__"].tolist() for batch in batches]


def stream(epochs: int) -> list[list[int]]:
    """Return the indices of these epochs in a plain loop."""
    with TRAIN.loader(workers=0) as loader:
        return [one for _ in range(epochs) for one in indices(loader)]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_distributed_checkpoint_holds_a_loader(tmp_path: Path) -> None:
    """torch.distributed.checkpoint saves a loader beside other objects, and restores it."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.stateful import Stateful

    with TRAIN.loader(workers=0) as loader:
        assert isinstance(loader, Stateful)
        for _ in range(2):
            for _batch in loader:
                if (loader.epoch, loader.step) == (1, 3):
                    break
        checkpoint.save({"loader": loader, "weights": torch.ones(2)}, checkpoint_id=tmp_path)
    weights = torch.zeros(2)
    with TRAIN.loader(workers=0) as loader:
        checkpoint.load({"loader": loader, "weights": weights}, checkpoint_id=tmp_path)
        assert indices(loader) == stream(2)[STEPS + 3 :]
    assert weights.tolist() == [1, 1]


def test_accelerate_leaves_a_loader_as_it_is(tmp_path: Path) -> None:
    """It does not shard or move batches again; a registered loader is in its checkpoints."""
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    with TRAIN.loader(workers=0, device=accelerator.device) as loader:
        _, prepared = accelerator.prepare(torch.nn.Linear(1, 1), loader)
        assert prepared is loader
        accelerator.register_for_checkpointing(loader)
        for _batch in loader:
            if loader.step == 3:
                break
        accelerator.save_state(str(tmp_path))
        assert indices(loader) == stream(2)[STEPS:]
        accelerator.load_state(str(tmp_path))
        assert indices(loader) == stream(1)[3:]


@pytest.mark.parametrize(("epoch", "step"), [(0, 3), (1, 0), (1, 9), (2, 4)])
def test_accelerate_resumes_by_state_in_a_loop_that_sets_epochs(
    tmp_path: Path, epoch: int, step: int
) -> None:
    """Saved after any step; `set_epoch` before every pass, as for other loaders."""
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    with TRAIN.loader(workers=0) as loader:
        accelerator.register_for_checkpointing(accelerator.prepare(loader))
        while (loader.epoch, loader.step) != (epoch, step):
            for _batch in loader:
                if (loader.epoch, loader.step) == (epoch, step):
                    break
        accelerator.save_state(str(tmp_path))
    accelerator = accelerate.Accelerator(cpu=True)
    with TRAIN.loader(workers=0) as loader:
        accelerator.register_for_checkpointing(accelerator.prepare(loader))
        accelerator.load_state(str(tmp_path))
        seen = []
        for number in range(loader.epoch, 3):
            loader.set_epoch(number)
            seen += indices(loader)
    assert seen == stream(3)[epoch * STEPS + step :]


@pytest.mark.parametrize("epoch", range(2))
@pytest.mark.parametrize("step", [0, 1, 7, STEPS - 1])
@pytest.mark.parametrize("by_state", [False, True])
def test_accelerate_skips_first_batches(epoch: int, step: int, by_state: bool) -> None:
    """The batches of the interrupted epoch that are left, then whole epochs; also where the
    loader's state was loaded, so that a loop may do both.
    """
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    with TRAIN.loader(workers=0) as loader:
        state = {**loader.state_dict(), "epoch": epoch, "step": step}
        assert accelerator.prepare(loader) is loader
        if by_state:
            loader.load_state_dict(state)
        loader.set_epoch(epoch)
        rest = accelerator.skip_first_batches(loader, step)
        assert len(rest) == STEPS - step
        seen = indices(rest)
        assert (loader.epoch, loader.step) == (epoch + 1, 0)
        for number in range(epoch + 1, 3):
            loader.set_epoch(number)
            seen += indices(loader)
        assert loader.stats()["batches"] == len(seen)  # what was skipped was not made
    assert seen == stream(3)[epoch * STEPS + step :]


def train(folder: Path, way: str, resume: Path | None = None, **options: Any) -> list[list[int]]:
    """Return the indices of three epochs of the Trainer; checkpoints go to the folder.

    It resumes by its own skipping, or by the loader's state that a callback puts into checkpoints.
    """
    transformers = pytest.importorskip("transformers")
    seen: list[list[int]] = []

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x: torch.Tensor, **others: torch.Tensor) -> dict[str, torch.Tensor]:
            if self.training:
                seen.append(others["__index__"].tolist())
            return {"loss": self.layer(x[:, None].float()).mean()}

    class Trainer(transformers.Trainer):  # type: ignore[misc,name-defined]
        def get_train_dataloader(self) -> ri.Loader:
            return self.train_dataset

        def get_eval_dataloader(self, eval_dataset: Any = None) -> ri.Loader:
            return self.eval_dataset

    class SavePosition(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
        def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            checkpoint = Path(args.output_dir, f"checkpoint-{state.global_step}")
            position = others["train_dataloader"].state_dict()
            (checkpoint / "loader.json").write_text(json.dumps(position))

    arguments = transformers.TrainingArguments(
        str(folder),
        num_train_epochs=3,
        learning_rate=1e-9,
        use_cpu=True,
        save_steps=7,
        eval_strategy="steps",
        eval_steps=6,
        report_to=[],
        disable_tqdm=True,
        ignore_data_skip=way == "state",
        **options,
    )
    with TRAIN.loader(workers=0) as loader, HELD_OUT.loader(workers=0) as validation:
        trainer = Trainer(Model(), arguments, train_dataset=loader, eval_dataset=validation)
        if way == "state":
            trainer.add_callback(SavePosition())
            if resume is not None:
                loader.load_state_dict(json.loads((resume / "loader.json").read_text()))
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return seen


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["skip", "state"])
def test_the_transformers_trainer_resumes_in_any_epoch(tmp_path: Path, way: str) -> None:
    """It evaluates in between. Each checkpoint, in or at the end of an epoch, gives the rest."""
    whole = stream(3)
    assert train(tmp_path, way, save_strategy="steps") == whole
    for step in (7, 14, 28):
        again = tmp_path / f"from-{step}"
        assert train(again, way, tmp_path / f"checkpoint-{step}") == whole[step:]
    # from a resumed run's checkpoint, and at an epoch's end
    assert train(tmp_path / "more", way, tmp_path / "from-7" / "checkpoint-21") == whole[21:]
    train(tmp_path / "epochs", way, save_strategy="epoch")
    assert train(tmp_path / "last", way, tmp_path / "epochs" / "checkpoint-20") == whole[20:]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["skip", "state"])
def test_the_transformers_trainer_resumes_with_accumulated_gradients(
    tmp_path: Path, way: str
) -> None:
    """Three batches a step, and one in the last step of an epoch."""
    whole = stream(3)
    assert train(tmp_path, way, gradient_accumulation_steps=3, save_strategy="steps") == whole
    assert (
        train(tmp_path / "again", way, tmp_path / "checkpoint-7", gradient_accumulation_steps=3)
        == whole[19:]
    )


def fit(
    folder: Path,
    resume: str | None = None,
    through_module: bool = False,
    estimate_steps: bool = False,
    **when: Any,
) -> list[list[int]]:
    """Return the indices of three epochs of Lightning's Trainer; checkpoints go to the folder.

    Many models estimate the number of steps for the schedule of their learning rate.
    """
    lightning = pytest.importorskip("lightning.pytorch")
    seen: list[list[int]] = []

    class Model(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: dict[str, Any], number: int) -> torch.Tensor:
            seen.append(batch["__index__"].tolist())
            return self.layer(batch["x"][:, None].float()).mean()

        def validation_step(self, batch: dict[str, Any], number: int) -> None:
            assert len(batch["x"]) == 16

        def configure_optimizers(self) -> torch.optim.Optimizer:
            if estimate_steps:
                assert self.trainer.estimated_stepping_batches == 3 * STEPS
            return torch.optim.SGD(self.parameters(), 1e-6)

    class Data(lightning.LightningDataModule):  # type: ignore[misc,name-defined]
        def setup(self, stage: str) -> None:
            self.train, self.validation = TRAIN.loader(workers=0), HELD_OUT.loader(workers=0)

        def train_dataloader(self) -> ri.Loader:
            return self.train

        def val_dataloader(self) -> ri.Loader:
            return self.validation

        def state_dict(self) -> dict[str, Any]:
            return self.train.state_dict()

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.train.load_state_dict(state)

    keep = lightning.callbacks.ModelCheckpoint(folder, "{step}", save_top_k=-1, **when)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", callbacks=[keep], **quiet)
    if through_module:
        trainer.fit(Model(), datamodule=Data(), ckpt_path=resume)
    else:
        with TRAIN.loader(workers=0) as train, HELD_OUT.loader(workers=0) as validation:
            trainer.fit(Model(), train, validation, ckpt_path=resume)
    return seen


@pytest.mark.filterwarnings("ignore")
def test_lightning_trains_on_a_loader_and_resumes_in_an_epoch(tmp_path: Path) -> None:
    """A run sees all epochs, and resumes from a checkpoint of any step."""
    assert fit(tmp_path, every_n_train_steps=7) == stream(3)
    for step in (7, 14, 21):
        assert fit(tmp_path / "again", str(tmp_path / f"step={step}.ckpt")) == stream(3)[step:]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimate_steps", [False, True])
def test_lightning_resumes_from_every_checkpoint_through_a_data_module(
    tmp_path: Path, estimate_steps: bool
) -> None:
    """In an epoch and at its end, whether or not the model estimates the number of steps."""
    options: dict[str, Any] = {"through_module": True, "estimate_steps": estimate_steps}
    assert fit(tmp_path, **options) == stream(3)
    for step in (10, 20):
        resume = str(tmp_path / f"step={step}.ckpt")
        assert fit(tmp_path / "again", resume, **options) == stream(3)[step:]
    within = tmp_path / "within"
    fit(within, every_n_train_steps=7, **options)
    for step in (7, 14):
        resume = str(within / f"step={step}.ckpt")
        assert fit(tmp_path / "again", resume, **options) == stream(3)[step:]


@pytest.mark.filterwarnings("ignore")
def test_lightning_drops_the_state_of_a_loader_that_is_given_to_fit(tmp_path: Path) -> None:
    """If the model estimates the number of steps. It is why the docs name the data module alone."""
    fit(tmp_path, every_n_train_steps=7, estimate_steps=True)
    resumed = fit(tmp_path / "again", str(tmp_path / "step=7.ckpt"), estimate_steps=True)
    assert resumed[0] == stream(1)[0]
