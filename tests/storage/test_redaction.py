"""Credentials never show."""

from __future__ import annotations

import pytest

from rayingest.storage.redact import redact, redact_text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("/data/a?.tar", "/data/a?.tar"),
        ("s3://bucket/a-{0..3}.tar", "s3://bucket/a-{0..3}.tar"),
        ("https://user:pass@host/a.tar", "https://host/a.tar"),
        ("https://user:p@ss?#@host/a.tar", "https://host/a.tar"),
        ("https://token@host/a.tar", "https://host/a.tar"),
        ("https://h/a.tar?X-Signature=abc&e=1", "https://h/a.tar?X-Signature=***&e=***"),
        ("https://h/a.tar?tokenwithoutname", "https://h/a.tar?***"),
        ("https://h/a b.tar?sig=x y", "https://h/a b.tar?sig=***"),
        ("simplecache::https://u:p@h/a.tar?sig=1", "simplecache::https://h/a.tar?sig=***"),
        ("zip://in.tar::https://u:p@h/a.zip?sig=1", "zip://in.tar::https://h/a.zip?sig=***"),
        ("http://[::1]/a.tar?sig=1", "http://[::1]/a.tar?sig=***"),
        ("abfs://container@account.dfs/a.tar", "abfs://container@account.dfs/a.tar"),
        ("s3://bucket/a@b.tar", "s3://bucket/a@b.tar"),
    ],
)
def test_url_loses_user_password_and_query_values_only(url: str, shown: str) -> None:
    """What names the file stays, what opens it goes."""
    assert redact(url) == shown


def test_text_is_redacted_wherever_urls_and_option_secrets_stand() -> None:
    """A library's message may quote the URL or the options."""
    text = "404, url='https://u:p@h/a?sig=SIG' for key SECRETKEY at anon"
    shown = redact_text(text, {"client_kwargs": {"aws_secret": "SECRETKEY"}, "anon": "visible"})
    assert shown == "404, url='https://h/a?sig=***' for key *** at anon"
