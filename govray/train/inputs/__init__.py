"""What a run is made of, verified before any worker starts, and as it was recorded."""
