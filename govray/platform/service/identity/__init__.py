"""The caller: tokens, sessions, providers, roles, and the audit log of them."""
