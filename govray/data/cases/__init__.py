"""What rights holders' cases ask of corpora that lie at hand."""
