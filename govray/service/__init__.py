"""The HTTP service: the record and the pages, over the store. No ray, no torch."""
