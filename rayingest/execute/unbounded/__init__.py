"""Execute streams without end: merge and read their partitions, and join them to the plan."""
