"""The reader for formats that users register."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from rayingest.api.dataset import Dataset
from rayingest.api.readers.common import BLOCK_BYTES, agree, described
from rayingest.formats import get_format
from rayingest.formats.protocol import check_options
from rayingest.options.checked import checked, option_type
from rayingest.options.types import Bytes, Folder, Place, StorageOptions, Text, Urls


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError
    return dict(value)


FormatOptions = Annotated[
    Mapping[str, Any],
    option_type("a mapping of the format's own options, as in {'fields': ['a']}", _mapping),
]


@checked(agree)
def read_format(
    name: Text,
    urls: Urls,
    *,
    index: Place | None = None,
    block_bytes: Bytes = BLOCK_BYTES,
    storage_options: StorageOptions | None = None,
    cache_dir: Folder | None = None,
    cache_bytes: Bytes | None = None,
    options: FormatOptions | None = None,
) -> Dataset:
    """Read shards of a format of your own, which `rayingest.formats.register_format` has registered.

    Its fields are the columns that the format reads. ConfigError for a name that is not registered in this process,
    and for an option that the format does not know. Other arguments as of `read_webdataset`.

    Args:
        name: the format's `name`.
        options: the format's own options, from its `option_names`.
    """
    check_options(get_format(name), options or {})
    return described(
        name, urls, index, block_bytes, storage_options, cache_dir, cache_bytes, options=options
    )
