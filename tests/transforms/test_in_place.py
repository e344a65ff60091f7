"""Decoders of a known shape write straight into the batch."""

from __future__ import annotations

import numpy as np

from rayingest.transforms import images
from rayingest.transforms.pipeline import Pipeline
from rayingest.transforms.stages import Decode, Map, Select
from tests.support.transform_cases import arguments, jpeg, run, run_pipeline, shard, with_schema


def test_images_are_written_straight_into_the_batch():
    """The batch array's rows are the arrays that the transform wrote."""
    pipeline = Pipeline((Decode({"jpg": images.RandomResizedCrop(16)}),), 0)
    samples = pipeline.run_samples(*arguments([shard()]), 0)
    columns = with_schema(pipeline, samples).finish(samples)
    for i, sample in enumerate(samples):
        assert np.shares_memory(sample["jpg"], columns["jpg"][i])
    assert columns["jpg"].flags.c_contiguous
    assert pipeline.spec_bytes == 16 * 16 * 3


def test_maps_may_change_or_replace_what_was_written():
    """A change in place shows in the batch; a replaced value is used for its sample."""

    def change(sample):
        if sample["cls"] == 1:
            sample["jpg"][:] = 5
        return {**sample, "jpg": np.zeros((8, 8, 3), np.uint8)} if sample["cls"] == 2 else sample

    columns = run([Decode({"jpg": images.Resize((8, 8))}), Map(change)], shard())
    assert (columns["jpg"][1] == 5).all()
    assert (columns["jpg"][2] == 0).all()
    np.testing.assert_array_equal(columns["jpg"][3], images.Resize((8, 8))(jpeg(3)))


def test_one_member_under_two_names_has_two_arrays():
    """A change of one leaves the other as it is."""
    decode = Decode({"jpg": images.Resize((8, 8))})

    def blacken(sample):
        sample["a"][:] = 0
        return sample

    columns = run([decode, Select({"a": "jpg", "b": "jpg"}), Map(blacken)], shard())
    assert not columns["a"].any()
    assert columns["b"].any()


def test_a_users_own_decoder_may_write_in_place():
    """It declares `output_shape`, `output_dtype` and `out`; 1-D results need no lengths."""

    class Histogram:
        output_shape = (4,)
        output_dtype = "float32"

        def __call__(self, data, out=None):
            out[:] = np.bincount(np.frombuffer(data, np.uint8) // 64, minlength=4)
            return out

    pipeline = Pipeline((Select({"x": "jpg"}), Decode({"x": Histogram()})), 0)
    columns = run_pipeline(pipeline, shard())
    assert list(columns) == ["x"]
    assert columns["x"].dtype == np.float32
    assert columns["x"].sum() == sum(len(jpeg(i)) for i in range(4))
    assert pipeline.spec_bytes == 16


def test_spec_bytes():
    """They count the fields of known shape at the end; 0 if none is known."""
    resize = Decode({"a": images.Resize((4, 4)), "b": images.Resize((2, 2)), "c": images.Resize(4)})
    assert Pipeline((), 0).spec_bytes == 0
    assert Pipeline((resize,), 0).spec_bytes == 60
    assert Pipeline((resize, Select({"x": "b"})), 0).spec_bytes == 12
    assert Pipeline((resize, Decode({"a": bytes})), 0).spec_bytes == 12
