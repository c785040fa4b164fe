"""Rows that are more than packed text: conversations, and named tensors."""
