"""Checks: from what the ranks did to a verdict. Pure: no torch, no threads, no text layout."""
