"""Drafts for regulators, from a verified model and what its provider signed.

Each report is a pure function of verified documents. It states from which record each field comes,
and marks as missing what no record states. Nothing is guessed, and nothing here is advice.
"""
