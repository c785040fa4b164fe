"""The record over HTTP: who asks, what they may see, and within which bounds.

Whatever it answers comes from the store, and what is signed is passed on as the bytes that were
signed.
"""
