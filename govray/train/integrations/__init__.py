"""Loops that are not ours: the Trainer of transformers, Lightning."""
