"""Hidden names are no data unless named, on every storage, in folders and in globs."""

from __future__ import annotations

import io
from pathlib import Path

import fsspec
import pytest
from PIL import Image

import rayingest as ri
from rayingest.errors import ConfigError
from rayingest.storage.file_info import is_matched
from rayingest.storage.listing import list_shards

DATA = ("a.tar", "sub/b.tar", "year=1/c.tar")
HIDDEN = (
    "._a.tar",
    ".git/x.tar",
    ".ipynb_checkpoints/a-checkpoint.tar",
    "__MACOSX/a.tar",
    "_delta_log/0.tar",
    "_temporary/0/part.tar",
    "sub/.b.tar",
    "sub/_SUCCESS",
)


@pytest.fixture(params=["local", "memory"])
def base(request, tmp_path: Path) -> str:
    """Return the URL of a folder with data and hidden files."""
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    for name in (*DATA, *HIDDEN):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        fs.pipe_file(f"/bucket/{name}", b"x")
    return str(tmp_path) if request.param == "local" else "memory://bucket"


def paths(urls, base: str, suffixes=(".tar",)) -> list[str]:
    found = list_shards(urls, suffixes=suffixes)
    return [found.url(i).removeprefix(base).strip("/") for i in range(len(found))]


@pytest.mark.parametrize("pattern", ["", "/", "/**", "/**/*.tar", "/**/*"])
def test_folders_and_globs_leave_hidden_names_out(base, pattern):
    """At any depth; a folder of any files too."""
    assert paths(base + pattern, base) == list(DATA)
    assert paths(base, base, ("",)) == list(DATA)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("/*.tar", ["a.tar"]),
        ("/*", ["a.tar"]),
        ("/[._]*.tar", []),
        ("/.*.tar", ["._a.tar"]),
        ("/._a.tar", ["._a.tar"]),
        ("/*/*.tar", ["sub/b.tar", "year=1/c.tar"]),
        ("/**/.ipynb_checkpoints/*.tar", [".ipynb_checkpoints/a-checkpoint.tar"]),
        ("/.git", [".git/x.tar"]),
        ("/_temporary", ["_temporary/0/part.tar"]),
        ("/_temp*/**/*.tar", ["_temporary/0/part.tar"]),
        ("/__MACOSX/*.tar", ["__MACOSX/a.tar"]),
        ("/{.git/x,a}.tar", [".git/x.tar", "a.tar"]),
    ],
)
def test_a_hidden_name_is_read_where_it_is_named(base, pattern, expected):
    """As in a shell: a wildcard does not stand for its first character."""
    if expected:
        assert paths(base + pattern, base) == expected
    else:
        with pytest.raises(ConfigError, match="matches no file"):
            paths(base + pattern, base)


def test_a_list_takes_what_it_names(base):
    """Each element is a name of its own."""
    assert paths([f"{base}/._a.tar", f"{base}/sub"], base) == ["._a.tar", "sub/b.tar"]


def test_folders_above_the_data_may_be_hidden(tmp_path):
    """A dataset in `~/.cache` is data."""
    folder = tmp_path / ".cache" / "_temporary"
    folder.mkdir(parents=True)
    (folder / "a.tar").write_bytes(b"x")
    for pattern in ("", "/*.tar", "/**/*.tar"):
        assert paths(f"{folder}{pattern}", str(folder)) == ["a.tar"]
    assert is_matched("/x/.cache/d/a.tar", "/x/.cache/*/a.tar")
    assert not is_matched("/x/.cache/.d/a.tar", "/x/.cache/*/a.tar")


def test_hidden_folders_are_no_classes(tmp_path):
    """The labels of the classes stay as they are."""
    image = io.BytesIO()
    Image.new("RGB", (4, 4)).save(image, "png")
    for name in ("cat/0.png", "dog/0.png", ".ipynb_checkpoints/0.png", "dog/._0.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(image.getvalue())
    data = ri.read_images(tmp_path).select(label="label", name="class")
    with data.batch(1).loader(workers=0, epochs=1) as loader:
        found = [(batch["label"].item(), batch["name"][0]) for batch in loader]
    assert found == [(0, "cat"), (1, "dog")]
