"""Answering with a model whose attestation verifies: load, generate, HTTP."""
