"""What earlier commits wrote goes on working: it verifies, is indexed, traced and resumed."""
