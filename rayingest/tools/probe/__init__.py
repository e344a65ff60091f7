"""Measure a pipeline without a model: which settings suffice, and what the data costs."""
