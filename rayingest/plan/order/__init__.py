"""Which sample is in which row of which step."""
