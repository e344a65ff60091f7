"""Items of PyTorch datasets."""
