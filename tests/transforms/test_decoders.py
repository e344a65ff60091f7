"""Extensions select decoders, and unsafe data is refused."""

from __future__ import annotations

import functools
import gzip
import io
import json
import zipfile

import msgpack
import numpy as np
import pytest
from PIL import Image

from rayingest.errors import ConfigError, DataError
from rayingest.transforms import decoders
from rayingest.transforms.decoders import decoder_for, gunzip


def saved(write, *args, **kwargs) -> bytes:
    file = io.BytesIO()
    write(file, *args, **kwargs)
    return file.getvalue()


def png(color=(1, 2, 3)) -> bytes:
    return saved(lambda file: Image.new("RGB", (5, 4), color).save(file, "PNG"))


@pytest.mark.parametrize(
    ("name", "data", "value"),
    [
        ("txt", "grüß".encode(), "grüß"),
        ("caption.TXT", b"a", "a"),
        ("transcript", b"a", "a"),
        ("cls", b" 17\n", 17),
        ("a.index", b"-3", -3),
        ("json", b'{"a": [1, 2.5]}', {"a": [1, 2.5]}),
        ("jsn", b"null", None),
        ("msg", msgpack.packb({"a": 1, 2: b"x"}), {"a": 1, 2: b"x"}),
        ("txt.gz", gzip.compress(b"hello", mtime=0), "hello"),
        ("cls.gz.gz", gzip.compress(gzip.compress(b"4", mtime=0), mtime=0), 4),
        ("bin.gz", gzip.compress(b"\x00\x01", mtime=0), b"\x00\x01"),
        ("gz", gzip.compress(b"z", mtime=0), b"z"),
    ],
)
def test_plain_decoders(name, data, value):
    """The last dotted part decides, in any case, after .gz is decompressed."""
    decoder = decoder_for(name)
    assert decoder is not None
    assert decoder(data) == value


def test_arrays():
    """npy gives the array, npz a dict of them."""
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    loaded = decoder_for("x.npy")(saved(np.save, array))
    assert loaded.dtype == np.int16
    np.testing.assert_array_equal(loaded, array)
    both = decoder_for("npz")(saved(np.savez_compressed, a=array, b=array * 2))
    assert list(both) == ["a", "b"]
    np.testing.assert_array_equal(both["b"], array * 2)


@pytest.mark.parametrize("name", ["bin", "dat", "tar", "seg", "jpg2", "", "mp4"])
def test_unknown_extensions_stay_bytes(name):
    """An extension that is not in the table has no decoder."""
    assert decoder_for(name) is None


@pytest.mark.parametrize(
    "extension", ["jpg", "jpeg", "png", "ppm", "pnm", "webp", "bmp", "tif", "tiff", "gif"]
)
def test_images_become_rgb(extension):
    """Every image extension gives uint8 (height, width, 3)."""
    form = {"jpg": "JPEG", "tif": "TIFF", "pnm": "PPM"}.get(extension, extension.upper())
    data = saved(lambda file: Image.new("RGB", (5, 4), (200, 200, 200)).save(file, form))
    image = decoder_for(f"left.{extension}")(data)
    assert (image.dtype, image.shape) == (np.uint8, (4, 5, 3))
    assert abs(image.astype(int) - 200).max() <= 2


@pytest.mark.parametrize("name", ["pkl", "pickle", "pyd", "a.pth", "pkl.gz"])
def test_pickles_are_refused(name):
    """The error names the field, says why, and how to read it as bytes."""
    with pytest.raises(ConfigError, match="unpickling can run any code") as caught:
        decoder_for(name)(gzip.compress(b"x"))
    assert repr(name) in str(caught.value)
    assert "bytes)" in str(caught.value) or "bytes})" in str(caught.value)
    assert (".decode(pkl=bytes)" in str(caught.value)) == (name == "pkl")
    assert (".decode(pkl=pickle.loads)" in str(caught.value)) == (name == "pkl")
    assert "pickle.loads" in str(caught.value)


def test_pickled_objects_inside_arrays_are_refused():
    """An .npy of objects is not unpickled, whether alone or in an .npz."""
    objects = np.array([{}, []], dtype=object)
    with pytest.raises(
        DataError, match=r"npy.*numpy\.load\(io\.BytesIO\(data\), allow_pickle=True\)"
    ):
        decoder_for("npy")(saved(np.save, objects, allow_pickle=True))
    with pytest.raises(DataError, match=r"npy.*allow_pickle=True"):
        decoder_for("npz")(saved(np.savez, a=objects))


def test_gzip_bomb_is_refused():
    """Decompression stops at the limit, over all members together."""
    data = gzip.compress(bytes(100_000))
    assert len(gunzip(data, limit=100_000)) == 100_000
    with pytest.raises(DataError, match="more than 99999 bytes"):
        gunzip(data, limit=99_999)
    with pytest.raises(DataError, match="more than 150000 bytes"):
        gunzip(data + data, limit=150_000)


def test_gzip_members_and_padding():
    """Members are joined, zeros after them are padding, a missing tail is an error."""
    assert gunzip(gzip.compress(b"a") + gzip.compress(b"b") + bytes(7)) == b"ab"
    for broken in (gzip.compress(b"abc")[:-3], b"", b"plain", gzip.compress(b"a") + b"junk"):
        with pytest.raises(DataError, match="gzip"):
            gunzip(broken)


def test_npz_bomb_is_refused(monkeypatch):
    """An archive is refused by the sizes that its members declare, before any is read."""
    monkeypatch.setattr(decoders, "MAX_UNPACKED", 1_000)
    data = saved(np.savez_compressed, a=np.zeros(1_000))
    with pytest.raises(
        DataError,
        match=r"limit is 1000; .*partial\(rayingest\.transforms\.decoders\.decode_npz, limit=",
    ):
        decoder_for("npz")(data)
    assert list(functools.partial(decoders.decode_npz, limit=10_000)(data)) == ["a"]
    with pytest.raises(
        DataError, match=r"1000 bytes; .*partial\(rayingest\.transforms\.decoders\.gunzip, limit="
    ):
        decoder_for("txt.gz")(gzip.compress(bytes(1_001)))


def test_an_array_that_claims_to_be_huge_is_refused():
    """A header of terabytes in a small file is a DataError."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 50,)}
    )
    with pytest.raises(DataError, match="npy"):
        decoder_for("npy")(header.getvalue() + bytes(100))


@pytest.mark.parametrize("name", ["npy", "npz"])
@pytest.mark.parametrize("data", [b"", b"PK", b"\x93NUMPY", b"nonsense"])
def test_broken_arrays(name, data):
    """Bytes that are not an array are a DataError."""
    with pytest.raises(DataError):
        decoder_for(name)(data)


def test_truncated_array():
    """A truncated array is a DataError."""
    with pytest.raises(DataError, match="npy"):
        decoder_for("npy")(saved(np.save, np.zeros(100))[:-5])
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("a.npy", saved(np.save, np.zeros(100))[:-5])
    with pytest.raises(DataError, match="npy"):
        decoder_for("npz")(whole.getvalue())


def test_json_stays_what_it_is():
    """Values inside a JSON member are not decoded further."""
    assert decoder_for("meta.json")(json.dumps({"id": "7", "jpg": None}).encode()) == {
        "id": "7",
        "jpg": None,
    }
