"""What sites reserve, by snapshots of their files, and records left out for it."""
