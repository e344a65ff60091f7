"""From a description to a running loader."""
