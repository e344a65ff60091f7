"""Contestants over Parquet: rows of packed tokens, and tables of float32 columns.

Owns the data and each loader's setup: two workers, shuffled, the same columns in every batch.
Torch's DataLoaders hold the whole table in memory beforehand, as fast as they can be. rayingest,
Hugging Face and Ray Data read the files in every epoch; MosaicML Streaming and LitData read copies
of the tokens in their own formats (`format_loaders.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from torch.utils.data import Dataset as TorchDataset

import rayingest as ri
from benchmarks.child import LITDATA, MOSAIC, Child

SEED = 17
TOKENS, COLUMNS = 2048, 16
GROUP_BYTES = 2 << 20
PASSES = 2
"""Times that every file is in an epoch that is timed as a whole."""


@dataclass(frozen=True)
class Table:
    """Parquet files of one case. `batched`: ask the dataset for batches of rows."""

    folder: Path
    batch: int
    row_bytes: int
    batched: bool

    @property
    def files(self) -> list[str]:
        """Return the paths."""
        return sorted(map(str, self.folder.glob("*.parquet")))


def token_rows(root: Path, files: int = 8, rows: int = 2048) -> Table:
    """Write rows of `tokens`, int32[2048]; batches of 16."""

    def part(rng: np.random.Generator) -> pa.Table:
        values = pa.array(rng.integers(0, 50_000, rows * TOKENS, dtype=np.int32))
        return pa.table({"tokens": pa.FixedSizeListArray.from_arrays(values, TOKENS)})

    return Table(
        _made(root / f"tokens-{files}-{rows}", files, part, 4 * TOKENS), 16, 4 * TOKENS, False
    )


def float_columns(root: Path, files: int = 8, rows: int = 1 << 18) -> Table:
    """Write 16 columns of float32 and `label` int64; batches of 1,024."""

    def part(rng: np.random.Generator) -> pa.Table:
        columns = {f"c{i:02d}": rng.random(rows, np.float32) for i in range(COLUMNS)}
        return pa.table({**columns, "label": rng.integers(0, 2, rows)})

    row = 4 * COLUMNS + 8
    return Table(_made(root / f"floats-{files}-{rows}", files, part, row), 1024, row, True)


def _made(
    folder: Path, files: int, part: Callable[[np.random.Generator], pa.Table], row_bytes: int
) -> Path:
    if not folder.exists():
        making = folder.with_name(f"{folder.name}.{os.getpid()}")
        making.mkdir(parents=True)
        for number in range(files):
            table = part(np.random.default_rng((SEED, number)))
            pq.write_table(
                table, making / f"{number:03d}.parquet", row_group_size=GROUP_BYTES // row_bytes
            )
        making.rename(folder)
    return folder


class InMemory(TorchDataset[Any]):
    """All rows as arrays, for a DataLoader: one row, or the rows of a list."""

    def __init__(self, table: Table) -> None:
        whole = pq.read_table(table.files).combine_chunks()
        self._columns = {
            name: _array(whole.column(name).combine_chunks()) for name in whole.column_names
        }

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, rows: Any) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(column[rows]) for name, column in self._columns.items()}


def _array(column: pa.Array) -> np.ndarray:
    if pa.types.is_fixed_size_list(column.type):
        return column.flatten().to_numpy().reshape(len(column), -1).copy()  # writable
    return column.to_numpy().copy()


def torch_loader(table: Table, workers: int, kind: Any = DataLoader) -> Any:
    """Make a DataLoader, or a subclass, as documented: for tables, with batches of indices."""
    data = InMemory(table)
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    if not table.batched:
        return kind(data, batch_size=table.batch, shuffle=True, drop_last=True, **options)
    sampler = BatchSampler(RandomSampler(data), table.batch, drop_last=True)
    return kind(data, sampler=sampler, batch_size=None, **options)


def stateful_loader(table: Table, workers: int) -> Any:
    """Make torchdata's loader."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return torch_loader(table, workers, StatefulDataLoader)


def hugging_face_loader(table: Table, workers: int, tuned: bool) -> Any:
    """Stream from Parquet through a shuffle buffer, in a DataLoader's workers, each with half of
    the files.

    Rows become tensors one by one, and the DataLoader stacks them. Tuned: the stream makes batches
    of columns.
    """
    from datasets import load_dataset

    stream = load_dataset("parquet", data_files=table.files, split="train", streaming=True)
    assert stream.num_shards % workers == 0  # else one of them is idle at the end of every epoch
    stream = stream.shuffle(seed=SEED, buffer_size=1000).with_format("torch")
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": True}
    if tuned:
        return DataLoader(
            stream.batch(table.batch, drop_last_batch=True), batch_size=None, **options
        )
    return DataLoader(stream, batch_size=table.batch, drop_last=True, **options)


class RayDataEpochs:
    """Ray Data limited to some CPUs: a new execution for every epoch of `PASSES` passes."""

    def __init__(self, table: Table, workers: int) -> None:
        import ray.data

        context = ray.data.DataContext.get_current()
        context.execution_options.resource_limits = context.execution_options.resource_limits.copy(
            cpu=workers
        )
        context.enable_progress_bars = False
        self._data = ray.data.read_parquet(PASSES * table.files, shuffle="files")
        self._batch = table.batch

    def __iter__(self) -> Iterator[Any]:
        buffer = 16 * self._batch
        return iter(
            self._data.iter_torch_batches(
                batch_size=self._batch,
                drop_last=True,
                prefetch_batches=2,
                local_shuffle_buffer_size=buffer,
            )
        )


def elsewhere(table: Table, workers: int, name: str, maker: str) -> Child:
    """Make a loader in the other environment, which has no Parquet: it gets tokens as arrays."""
    return Child(name, ("benchmarks.format_loaders", maker), token_arrays(table), workers)


def token_arrays(table: Table) -> list[Path]:
    """Write the tokens of each file once as int32[rows, 2048] to a `.npy`; return the files."""
    folder = table.folder.with_suffix(".arrays")
    if not folder.exists():
        making = folder.with_name(f"{folder.name}.{os.getpid()}")
        making.mkdir()
        for file in map(Path, table.files):
            np.save(
                making / f"{file.stem}.npy",
                _array(pq.read_table(file).column("tokens").combine_chunks()),
            )
        making.rename(folder)
    return sorted(folder.glob("*.npy"))


def our_loader(table: Table, workers: int) -> Any:
    """Make a loader of rayingest."""
    data = (
        ri.read_parquet(table.files, index=table.folder.with_suffix(".index"))
        .shuffle(seed=SEED)
        .batch(table.batch)
    )
    return data.loader(workers=workers, device="cpu")


FORKED: dict[str, Callable[[Table, int], Any]] = {
    "DataLoader": torch_loader,
    "DataLoader again": torch_loader,
    "DataLoader, no workers": lambda table, workers: torch_loader(table, 0),
    "StatefulDataLoader": stateful_loader,
    "Hugging Face, defaults": partial(hugging_face_loader, tuned=False),
    "Hugging Face, tuned": partial(hugging_face_loader, tuned=True),
}
"""Those with processes of their own."""
FORKED_OF_TOKENS: dict[str, Callable[[Table, int], Any]] = {
    LITDATA: partial(elsewhere, name=LITDATA, maker="litdata_tokens"),
    MOSAIC: partial(elsewhere, name=MOSAIC, maker="mosaic_tokens"),
}
"""And those of tokens alone."""
ON_RAY: dict[str, Callable[[Table, int], Any]] = {
    "rayingest": our_loader,
    "Ray Data": RayDataEpochs,
}
