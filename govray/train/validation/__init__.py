"""What a run is judged by: validation data, and the best of what was measured."""
