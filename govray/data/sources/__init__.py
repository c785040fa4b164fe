"""From other people's files to records: which objects there are, their rows, what rows state."""
