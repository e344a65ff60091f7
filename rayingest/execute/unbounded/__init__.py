"""Streams without an end: how their partitions are merged and read, and how that is joined to the plan."""
