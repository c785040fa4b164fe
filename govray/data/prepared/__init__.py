"""Prepared folders below: which parts of one are finished, and its files as an object store's."""
