"""What happened, told to those who asked: events of the index, sent to webhooks."""
