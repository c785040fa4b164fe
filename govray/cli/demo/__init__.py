"""The main job on this machine, end to end: `govray demo`."""

WORKERS = 2
