"""Near copies of one text within a corpus, which lie on one side of the reserve."""
