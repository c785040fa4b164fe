"""Passes as CUDA graphs: what is captured once, and launched again by one call."""
