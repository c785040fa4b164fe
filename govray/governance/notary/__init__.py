"""What outsiders sign about time and ledgers: timestamps, cosignatures, and a witness's answer."""
