"""What is tried on real rows before the first step, and refused by name."""
