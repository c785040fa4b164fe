"""What happened, told to those who asked: events of the index, sent to webhooks.

`noticing` finds events, `delivery` sends them, and `reverification` verifies registered models
again. `rounds` does all three, again and again.
"""
