"""The S3 server, as for the tests of storage."""

from __future__ import annotations

from tests.support.s3_server import s3

__all__ = ["s3"]
