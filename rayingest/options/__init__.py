"""Checked calls and the types of their options."""
