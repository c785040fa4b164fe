"""What a governed step costs, measured against plain DDP and what people write by hand.

``python -m benchmarks.step`` and ``python -m benchmarks.scaling``; docs/performance.md
says what their numbers mean. Not part of the wheel. Neither needs Ray.
"""
