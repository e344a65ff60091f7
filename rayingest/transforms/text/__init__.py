"""Text transforms: text to tokens."""
