"""Raw blocks of every kind, and helpers that run a description over them."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
from PIL import Image
from ray import cloudpickle

from rayingest.transforms.pipeline import Pipeline
from rayingest.transforms.schema import infer_schema

SHARD = {b"shard": b"mem://data/a.tar"}


def block(first_offset=0, **columns) -> pa.Table:
    """Make a raw block; `KEY` and `JSON` stand for the columns of these names."""
    names = {"KEY": "__key__", "JSON": "__json__"}
    n = len(next(iter(columns.values())))
    table = {"__offset__": pa.array(range(first_offset, first_offset + 10 * n, 10), pa.int64())}
    for name, values in columns.items():
        table[names.get(name, name)] = values
    return pa.table(table).replace_schema_metadata(SHARD)


def jpeg(i: int, height=40, width=50) -> bytes:
    file = io.BytesIO()
    coarse = np.random.default_rng(i).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize((width, height)).save(file, "JPEG")
    return file.getvalue()


def shard(start=0, n=4) -> pa.Table:
    """Make a WebDataset block of jpg, cls and json members."""
    return block(
        first_offset=start * 10,
        KEY=[f"k{i}" for i in range(start, start + n)],
        jpg=[jpeg(i) for i in range(start, start + n)],
        cls=[str(i).encode() for i in range(start, start + n)],
        json=[json.dumps({"i": i}).encode() for i in range(start, start + n)],
    )


def run(stages, *tables, epoch=0, seed=1, rows=None, **options):
    """Run all rows of the tables, or the given ones, through a pipeline that was pickled."""
    pipeline = cloudpickle.loads(cloudpickle.dumps(Pipeline(tuple(stages), seed, **options)))
    return run_pipeline(pipeline, *tables, epoch=epoch, rows=rows)


def run_pipeline(pipeline, *tables, epoch=0, rows=None):
    """Return the columns of these rows, with the schema that they imply."""
    samples = pipeline.run_samples(*arguments(tables, rows), epoch)
    return with_schema(pipeline, samples).finish(samples)


def run_with_schema(stages, *tables, rows=None):
    """Run rows with the schema of all rows of the tables, as a loader does."""
    pipeline = Pipeline(tuple(stages), 1)
    pipeline = replace(pipeline, schema=pipeline.learn_schema(*arguments(tables)))
    return pipeline.finish(pipeline.run_samples(*arguments(tables, rows), 0))


def with_schema(pipeline, samples):
    """Return the pipeline with the schema of these samples."""
    return replace(pipeline, schema=infer_schema(samples, samples.fixed))


def arguments(tables, rows=None):
    table_of = np.concatenate([np.full(len(table), t) for t, table in enumerate(tables)])
    row_of = np.concatenate([np.arange(len(table)) for table in tables])
    rows = np.arange(len(table_of)) if rows is None else np.asarray(rows)
    return list(tables), table_of[rows], row_of[rows], 100 + rows


def noisy(sample, rng):
    return {**sample, "noise": rng.random(3)}


def noisy_x(sample, rng, scale):
    return {"x": rng.random() * scale}
