"""List shards, read their bytes with retries, and cache indexes and ranges."""
