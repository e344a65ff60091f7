"""Decide which blocks to read, chunks to decode, blocks to evict and steps to deliver next."""
