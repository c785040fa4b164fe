"""A verified model in the formats that others check: each format is a pure function of its facts.

Nothing here verifies, signs attestations or writes files.
"""
