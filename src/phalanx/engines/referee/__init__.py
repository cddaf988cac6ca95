"""Checks for ranks in processes of their own, which announce what they do at a referee."""
