"""Pure planning: what to read, in which order, for whom. Numpy and the standard library only."""
