"""Tests that are explored: run in many orders, judged, repeated, and reported by pytest."""
