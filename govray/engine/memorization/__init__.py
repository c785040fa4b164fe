"""Measures of memorization: scores by layer, their deviation, exposure, extraction."""
