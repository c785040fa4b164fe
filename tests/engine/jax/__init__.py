"""Tests of the step over JAX; skipped where JAX is not installed."""
