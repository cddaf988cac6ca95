"""Strategies: which of the possible next steps goes first. One module for each policy."""
