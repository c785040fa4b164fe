"""Figures of the pages, as SVG or as numbers for a script."""
