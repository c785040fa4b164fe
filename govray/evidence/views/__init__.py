"""Views of an attestation: what one audience is shown of it, under the operator's one signature.

Nothing here reads a clock or writes a file.
"""
