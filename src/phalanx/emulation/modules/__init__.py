"""Packages that every rank imports for itself, so that their globals belong to the rank."""
