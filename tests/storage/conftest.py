"""A web server for every test here that asks for one."""

from __future__ import annotations

from tests.web import web

__all__ = ["web"]
