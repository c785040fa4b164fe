"""The record: what every run left behind, indexed so that it can be asked.

Truth stays in signed bytes and in the ledger, on storage. The tables hold those bytes, their
digests, and columns derived from them; whatever is derived can be made again from storage.
"""
