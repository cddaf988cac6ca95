"""How ranks compare their values: leaves, digests, differences and their text."""
