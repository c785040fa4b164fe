"""Published ways to tell rows that a model was trained on from rows that it never saw.

One module each, pure: what a model says of rows' tokens in, a score for each row out. Scores are
higher where a row looks trained on. The memorization benchmark runs them beside the product's own.
"""
