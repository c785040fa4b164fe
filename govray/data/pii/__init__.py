"""Scanning records for personal data by patterns, before they become a corpus."""
