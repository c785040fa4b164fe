"""A verified model in the formats that others check: each format is a pure function of its facts.

Nothing here verifies, signs attestations or writes files. ``verified_facts.py`` has the facts,
``export_format.py`` the list of formats.
"""
