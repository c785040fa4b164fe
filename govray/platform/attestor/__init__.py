"""What was accepted and committed, and the models that follow from it. It has the operator's key.

It runs no code of a submitter, and loads neither torch nor Ray.
"""
