"""Which parameters a row may reach, and the passes that keep to it."""
