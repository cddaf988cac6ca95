"""Calls of the standard library that a rank must not make as they are."""
