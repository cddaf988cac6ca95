"""Ranks as processes on this machine, with torch's real backends. `engine.py` is the way in."""
