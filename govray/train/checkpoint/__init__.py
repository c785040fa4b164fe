"""Commits of a run: folders that are whole or absent, on a disk or on object storage."""
