"""What is signed of a finished model: its attestation, its folder, its removals and replays."""
