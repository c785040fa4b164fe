"""Outsiders over HTTP: timestamp authorities and witnesses that are asked, and a witness's server.

What they sign is made and verified in `govray.governance.notary`, which knows no network.
"""
