"""From run folders to rows of the store."""
