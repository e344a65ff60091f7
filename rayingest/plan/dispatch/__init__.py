"""What to read, decode, evict and deliver next."""
