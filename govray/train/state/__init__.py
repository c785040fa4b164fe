"""A run's state in commits: written, resumed, cloned, pruned."""
