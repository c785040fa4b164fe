"""Near copies of a text among the records of corpora, by an index of their passages."""
