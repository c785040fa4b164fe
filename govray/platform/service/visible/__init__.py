"""What a caller may see: runs, models, corpora, records, cases."""
