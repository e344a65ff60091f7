"""Samples and their random numbers, pinned: every kind of order and every domain of keys."""

import pytest

from tests.golden import adapter, compute

SHOWN_BY = {
    "augment": "random",
    "blocks": "window",
    "buckets": "buckets",
    "distance": "replacements",
    "global": "random",
    "groups": "packed_best_fit",
    "item": "random",
    "mixture": "mixed",
    "rotation": "window",
    "shard": "random",
    "split": "subset",
    "stand-in": "replacements",
    "stride": "replacements",
    "turns": "mixed",
    "weights": "weighted",
    "window": "window",
}
"""By domain tag of keys: a golden file that differs where keys of this domain differ."""


@pytest.mark.parametrize("name", compute.GOLDENS)
def test_golden_values_are_computed(name: str) -> None:
    """A changed value is a new version of its kind of order; values may only be added."""
    pinned, computed = compute.read(name), compute.compute(name)
    assert pinned.keys() == computed.keys()
    for key, value in pinned.items():
        assert computed[key] == value, key


def test_every_golden_file_is_computed() -> None:
    """No file lies here that nothing compares with."""
    files = compute.file_of("any").parent.glob("*.json")
    assert {file.stem for file in files} == set(compute.GOLDENS)


def test_golden_files_are_known_for_every_key_domain() -> None:
    """A new domain needs a golden file that shows it, and an entry in `SHOWN_BY`."""
    assert adapter.domain_tags() == set(SHOWN_BY)


@pytest.mark.parametrize(("tag", "name"), SHOWN_BY.items())
def test_every_key_domain_is_pinned(tag: str, name: str) -> None:
    """Where one domain has other keys, the golden file that shows it differs."""
    pinned = compute.read(name)
    with adapter.changed_tag(tag):
        assert compute.compute(name) != pinned
