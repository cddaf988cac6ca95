"""Ranks that start again when one of them fails, as torchrun's agent does it."""
