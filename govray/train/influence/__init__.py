"""Which corpora and records moved a run's model towards one output, by an estimate."""
