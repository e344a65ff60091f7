"""Counters, histograms and scaling decisions."""
