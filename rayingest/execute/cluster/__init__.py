"""Execute a plan on Ray: actors read and decode; the feeder does what dispatch decides."""
