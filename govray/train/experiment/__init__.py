"""The sections of the experiment file."""
