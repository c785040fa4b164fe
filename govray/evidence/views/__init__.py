"""Views of an attestation: what one audience is shown of it, under the operator's one signature.

``attestation_facts.py`` splits an attestation, ``disclosure.py`` commits to the parts,
``audience.py`` says who is shown what, and ``view.py`` is what they get. Nothing here reads a
clock or writes a file.
"""
