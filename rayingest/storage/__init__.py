"""Where bytes come from: listing shards, reading them with retries, and keeping the index of a data set."""
