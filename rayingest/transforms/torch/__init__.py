"""PyTorch datasets as sources: map-style items and iterable shards."""
