"""Governed runs over JAX."""
