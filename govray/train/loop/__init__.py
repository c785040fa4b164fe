"""The training loop behind an experiment file: the model, the optimizer and the schedule."""
