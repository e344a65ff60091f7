"""Make a `Dataset` of a Ray Dataset: `from_ray` writes its rows once, and reads them from there."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from rayingest.api.data import description_of
from rayingest.api.dataset import Dataset
from rayingest.api.readers.common import BLOCK_BYTES, absolute
from rayingest.api.readers.files import read_parquet
from rayingest.build.from_ray import write_once
from rayingest.options import Bytes, Place, StorageOptions, checked, option_type
from rayingest.storage.files import Storage


def _ray_dataset(value: Any) -> Any:
    import ray.data

    if not isinstance(value, ray.data.Dataset):
        raise TypeError
    return value


RayDataset = Annotated[Any, option_type("a Ray Dataset", _ray_dataset)]


@checked()
def from_ray(
    rows: RayDataset,
    path: Place,
    *,
    index: Place | None = None,
    block_bytes: Bytes = BLOCK_BYTES,
    storage_options: StorageOptions | None = None,
) -> Dataset:
    """Read the rows of a Ray Dataset, written once to Parquet files below `path`.

    After a run has written the files, later runs read them and execute nothing of the Ray Dataset,
    even if it would give other rows now: name another path for other rows. Files are numbered in
    the order of the rows; those of a failed attempt are ignored. Ray Data writes the files, so all
    of its nodes must reach the path.

    Args:
        rows: the Ray Dataset. A column of Python objects is refused.
        path: a folder, or a URL that fsspec opens.
        index: file or folder in which the index of the files is cached. Default: the user's cache
            folder.
        block_bytes: bytes of a row group, which is read as a whole.
        storage_options: for fsspec; never stored.
    """
    place, options = absolute(path).rstrip("/"), dict(storage_options or {})
    files = write_once(rows, place, Storage(options), block_bytes)
    written = description_of(read_parquet(files, index=index, storage_options=options))
    # The folders of `path` are no part of the rows.
    return Dataset(replace(written, source=replace(written.source, folder_columns=False)))
