"""Folders of the repository."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
"""Modules that scripts of the documentation import."""
