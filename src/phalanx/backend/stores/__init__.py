"""Stores and rendezvous inside one process; waiting in them goes through the baton."""
