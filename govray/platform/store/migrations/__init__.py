"""The scripts that take a store from one revision to the next; run by ``database.py``."""
