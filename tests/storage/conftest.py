"""Servers for every test here that asks for one."""

from __future__ import annotations

from tests.support.s3_server import s3
from tests.support.web import web

__all__ = ["s3", "web"]
