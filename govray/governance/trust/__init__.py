"""Who may say what: the trust root, its authorities, and what they have revoked."""
