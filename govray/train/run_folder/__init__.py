"""The files of a run folder: events, ledger, locks and requests."""
