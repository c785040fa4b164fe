"""Measures of memorization: scores by layer, ranks, exposure, extraction."""
