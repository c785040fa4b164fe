"""What ranks do together: they agree, sum gradients, and fail together."""
