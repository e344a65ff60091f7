"""Credentials never show."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from rayingest.errors import ConfigError
from rayingest.storage.files import Storage
from rayingest.storage.filesystems import hide_credentials
from rayingest.storage.redact import redact, redact_text, shorten


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
        ("https://u:pass/word@host/a.tar", "https://host/a.tar"),
        ("https://host:8080/a@b.tar", "https://host:8080/a@b.tar"),
        ("http://[::1]/a@b.tar", "http://[::1]/a@b.tar"),
        ("abfs://container@account.dfs/a.tar", "abfs://container@account.dfs/a.tar"),
        ("s3://bucket/a@b.tar", "s3://bucket/a@b.tar"),
        ("http:/u:p@host/a.yaml?sig=1", "http:/host/a.yaml?sig=***"),
        ("C:/data/a@b.tar", "C:/data/a@b.tar"),
    ],
)
def test_url_loses_user_password_and_query_values_only(url: str, shown: str) -> None:
    """What names the file stays, what opens it is removed."""
    assert redact(url) == shown


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("cat /data/train-01.tar", "cat train-01.tar"),
        (
            "/usr/bin/curl -H 'Authorization: Bearer SECRET' "
            "'https://u:SECRET@h/x/a.tar?sig=SECRET&e=1'",
            "curl a.tar",
        ),
        ("TOKEN=SECRET fetch --to=- b.tgz | gzip -dc", "*** b.tgz"),
        ("ssh host cat a.tar b.tar.gz", "ssh a.tar b.tar.gz"),
        ("", ""),
    ],
)
def test_of_a_command_the_program_and_the_tars_are_shown(command: str, shown: str) -> None:
    """A mark tells similar commands apart."""
    text = redact(f"pipe:{command}")
    assert text[:-11] == f"pipe:{shown}"
    assert text != redact(f"pipe:{command} ")


def test_text_is_redacted_wherever_urls_and_option_secrets_stand() -> None:
    """A library's message may quote the URL or the options."""
    text = "404, url='https://u:p@h/a?sig=SIG' for key SECRETKEY at anon"
    shown = redact_text(text, {"client_kwargs": {"aws_secret": "SECRETKEY"}, "anon": "visible"})
    assert shown == "404, url='https://h/a?sig=***' for key *** at anon"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"key": "AKIASECRET", "secret": "SECRET"}, "AKIASECRET and SECRET"),
        (
            {"client_kwargs": {"headers": {"X-Whatever": "Bearer SECRET"}}},
            "'Bearer SECRET' or SECRET",
        ),
        ({"auth": ("SECRET", "SECRETTOO")}, "SECRET:SECRETTOO"),
        ({"token": {"private_key": b"SECRET"}}, "b'SECRET'"),
        (
            {"connection_string": "Protocol=https;AccountName=me;AccountKey=SECRET=="},
            "key SECRET== is wrong",
        ),
        ({"sas_token": ["SECRET"]}, "?SECRET"),
    ],
)
def test_all_text_in_options_is_a_secret_unless_known_to_be_none(
    options: dict[str, Any], text: str
) -> None:
    """Holds for nested options and lists, and for parts of composed values."""
    assert "SECRET" not in redact_text(text, options)
    harmless = {**options, "endpoint_url": "http://minio", "region_name": "eu-west-1", "anon": True}
    assert redact_text("http://minio in eu-west-1", harmless) == "http://minio in eu-west-1"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1http://u:p@h", "1http://h"),
        ("_-éhttp://u:p@h", "_-éhttp://h"),
        ("a.b+c-http://u:p@h and 9é://u:p@h", "a.b+c-http://h and 9é://u:p@h"),
        ("x:y//http://u:p@h", "x:y//http://h"),
        ("(http://u:p@h/?a=b),ftp://u:p@h", "(http://h/?a=***"),
        ("'http://u:p@h''ftp://u:p@h'", "'http://h''ftp://h'"),
    ],
)
def test_a_url_in_text_begins_at_the_first_letter_of_its_word(text: str, shown: str) -> None:
    """Other characters at the begin of a word do not hide a URL."""
    assert redact_text(text) == shown


@pytest.mark.parametrize(
    "part",
    [
        "0a",
        "a",
        "é1",
        "a://",
        "://",
        "a::",
        ":",
        "::a://",
        "?",
        "?a=",
        "a?&",
        "@:/",
        "a:/",
        "a ",
        "a://'",
    ],
)
def test_text_is_scanned_once(part: str) -> None:
    """A million characters of any kind are scanned in linear time."""
    text = part * (1_000_000 // len(part))
    assert redact_text(text + " see https://u:SECRET@h/a").endswith(" see https://h/a")
    redact_text("https://h/" + text)


@pytest.mark.parametrize(
    "secret", ["https://u:SECRET@h", "SECRET", "https://h/?a=" + "SECRET" * 1000]
)
def test_a_long_text_is_cut_and_no_credential_with_it(secret: str) -> None:
    """Wherever the cut falls, no half of a credential remains."""
    for before in range(1980, 2000):
        text = "x" * (before - 1) + " " + secret + " " + "y" * 5_000_000
        shown = shorten(text)
        assert len(shown) < 2040
        assert "SEC" not in redact_text(shown, {"secret": "SECRET"})
        assert shown == shorten(shown)


def test_a_shortened_text_says_how_long_it_was() -> None:
    """A short text is unchanged; a word too long for a credential is cut."""
    assert shorten("a" * 3000) == "a" * 3000
    assert shorten("ab" * 2_500_000) == "ab" * 1000 + "... (4,998,000 characters more)"
    assert shorten(" " * 4000) == "... (4,000 characters more)"


def test_what_a_url_hides_is_hidden_in_text_too() -> None:
    """A library may quote parts of a URL."""
    url = "ftp://me:SECRET@host/dir/a.tar"
    assert redact_text("530 login of me with SECRET at host for a.tar failed", {}, url) == (
        "530 login of me with *** at host for a.tar failed"
    )


@pytest.mark.parametrize("name", ["fsspec.http", "s3fs", "gcsfs", "adlfs"])
def test_the_library_logs_without_credentials(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """fsspec's DEBUG lines with whole URLs, and quoted errors, are redacted."""
    hide_credentials()
    hide_credentials()
    log = logging.getLogger(name)
    with caplog.at_level(logging.DEBUG):
        log.debug("get %s", "https://u:SECRET@h/a.tar?sig=SECRET")
        try:
            raise OSError("no answer from https://h/a.tar?sig=SECRET")
        except OSError as error:
            log.debug("", exc_info=error)
    assert [record.getMessage() for record in caplog.records] == [
        "get https://h/a.tar?sig=***",
        "OSError: no answer from https://h/a.tar?sig=***",
    ]
    assert "SECRET" not in caplog.text


@pytest.mark.parametrize("user", ["AKIAKEY:hunter2", "AKIAKEY:hun/ter2", "hunter2"])
@pytest.mark.parametrize("scheme", ["s3", "s3a", "simplecache::s3"])
def test_an_s3_url_with_a_password_is_refused_unlogged(
    user: str, scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Libraries would take the password for a bucket's name and request it repeatedly."""
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises(ConfigError, match="storage_options=") as caught,
    ):
        Storage().size(f"{scheme}://{user}@bucket/d/a.tar")
    assert f"{scheme}://bucket/d/a.tar" in str(caught.value)
    assert not any(
        part in caplog.text + str(caught.value) for part in user.replace("/", ":").split(":")
    )


@pytest.mark.parametrize(
    "url", ["s3://bucket/a@b.tar", "s3://bucket/a:b@c.tar", "s3://arn:aws:s3:x:1:accesspoint/p/a@b"]
)
def test_an_s3_url_may_have_such_letters_in_its_path(url: str) -> None:
    """They belong to the key, or to an access point."""
    assert Storage().filesystem(url)[1] == url.removeprefix("s3://")
