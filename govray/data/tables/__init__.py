"""Tables of other people's files: Parquet and Arrow are decoded in a process of bounded memory."""
