"""The sections of the experiment file, one module each."""
