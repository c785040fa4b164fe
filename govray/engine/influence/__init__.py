"""How a loss moves along a direction in the weights, and what moved the weights that way."""
