"""Command-line tools built on the public API."""
