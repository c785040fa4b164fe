"""Evidence packs: one archive with what somebody needs to verify a model offline, years later."""
