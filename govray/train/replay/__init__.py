"""A run done again, and compared with what it recorded."""
