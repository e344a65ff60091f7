"""Who does what a plan says."""
