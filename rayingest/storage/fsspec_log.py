"""fsspec's own log lines, and those of its file systems, without credentials: at DEBUG they write whole URLs.

Owns a filter on these loggers, which changes nothing but text. What the libraries below it (botocore and its like)
write when told to is theirs.
"""

from __future__ import annotations

import logging
import traceback

from rayingest.storage.redact import redact_text

_LOGGERS = (
    *("fsspec", "fsspec.http", "fsspec.cached", "fsspec.reference", "fsspec.generic"),
    *("s3fs", "gcsfs", "gcsfs.credentials", "adlfs", "adlfs.spec"),
)


class _Redacted(logging.Filter):
    """Lets everything pass, redacted; of an exception only its last line, as its frames quote more."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if isinstance(record.exc_info, tuple) and record.exc_info[1] is not None:
            text += "".join(traceback.format_exception_only(record.exc_info[1])).rstrip()
            record.exc_info = record.exc_text = None
        record.msg, record.args = redact_text(text), ()
        return True


_FILTER = _Redacted()


def hide_credentials() -> None:
    """From now on, in this process; once is enough."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_FILTER)
