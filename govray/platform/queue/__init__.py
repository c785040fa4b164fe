"""The queue in front of Ray Jobs: who is next, what runs where, and what follows when it ends.

For a plain Ray cluster. On Kubernetes, Kueue does this.
"""
