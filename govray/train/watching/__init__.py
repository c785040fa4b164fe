"""What people see of a run while it goes on: its size, metrics, traces, and others' trackers."""
