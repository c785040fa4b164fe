"""The record over HTTP: who asks, what they may see, and within which bounds.

`app.create_app` makes the application; `govray serve` and the Serve application run it. Whatever
it answers comes from the store, and what is signed is passed on as the bytes that were signed.
"""
