"""The Ray path: actors that read and decode, and the feeder that carries out what dispatch decides."""
