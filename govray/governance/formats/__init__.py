"""Encodings and signatures, as their standards have them: JSON, DSSE, notes, Merkle trees."""
