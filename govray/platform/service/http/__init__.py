"""HTTP as it is spoken here: answers, problems, limits, settings."""
