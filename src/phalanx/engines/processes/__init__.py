"""Ranks as processes on this machine, with torch's real backends: `processes_engine.py`."""
