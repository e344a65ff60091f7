"""Execute a plan: read, decode and assemble what it says, in one process or on a cluster."""
