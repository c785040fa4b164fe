"""What a run leaves as evidence: manifest, plan, ledger, entropy profiles, gates."""
