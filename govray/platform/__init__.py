"""What a team runs: store, queue, service, and what they answer with."""
