"""What a governed step costs, measured against plain DDP and what people write by hand.

Each module with a command is run as ``python -m benchmarks.NAME``. benchmarks/performance.md has
results. The folder is not part of the wheel.
"""
