"""Signers by reference: a key in a file, a variable, a hardware module, or behind a command."""
