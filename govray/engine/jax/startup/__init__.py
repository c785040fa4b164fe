"""What is tried of a model before it trains."""
