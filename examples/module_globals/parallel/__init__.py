"""Parallelism whose state lives in module globals, as large training programs keep it."""
