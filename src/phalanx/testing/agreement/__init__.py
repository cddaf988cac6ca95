"""How ranks compare what they have: values taken apart, digests, differences and their text."""
