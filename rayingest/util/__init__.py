"""Small helpers that belong to no room: slow-operation warnings and progress bars."""
