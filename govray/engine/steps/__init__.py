"""What a step takes in, counts and gives back, whatever computes its gradients: no torch, no jax.

An engine (`govray.engine` with torch, `govray.engine.jax` with JAX) brings arrays, gradients and a
way to gather rows of integers from all processes. The rest is here: batches, routes by parameter
name, the counts N_l, what ranks agree on, and the ledger's leaf. So is a step over any framework.
"""
