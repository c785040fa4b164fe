"""What every framework shares."""
