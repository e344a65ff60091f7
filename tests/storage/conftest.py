"""Servers for every test here that asks for one."""

from __future__ import annotations

from tests.s3_server import s3
from tests.web import web

__all__ = ["s3", "web"]
