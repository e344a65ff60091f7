"""Decode samples, transform them, and put them together into batches."""
