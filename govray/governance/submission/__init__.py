"""What somebody hands in: who and for what, the working directory, an experiment with changes."""
