"""Loaders in the hands of frameworks that expect DataLoaders. Those that are not installed are
skipped.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import rayingest as ri


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


def fit(
    folder: Path, resume: str | None = None, through_module: bool = False, **when: Any
) -> list[list[int]]:
    """Return the indices of three epochs of Lightning's Trainer; checkpoints go to the folder."""
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
def test_lightning_resumes_at_an_epochs_end_through_a_data_module(tmp_path: Path) -> None:
    """There it restores no loader by itself; inside an epoch it works too."""
    assert fit(tmp_path, through_module=True) == stream(3)
    for step in (10, 20):
        assert (
            fit(tmp_path / "again", str(tmp_path / f"step={step}.ckpt"), True) == stream(3)[step:]
        )
    fit(tmp_path / "within", through_module=True, every_n_train_steps=7)
    assert (
        fit(tmp_path / "again", str(tmp_path / "within" / "step=14.ckpt"), True) == stream(3)[14:]
    )
