"""Search over governed runs: hyperparameters vary, policy and corpora never do."""
