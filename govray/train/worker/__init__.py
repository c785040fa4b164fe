"""What runs on every worker: the run, its step, and its shard of rows."""
