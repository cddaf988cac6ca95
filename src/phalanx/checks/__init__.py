"""Checks: one module for one kind of finding, from what the ranks did to a verdict.

Pure: no torch, no threads, no text layout. `registry` lists those that look back when a run has
ended. What is decided when calls meet or nobody can move, mismatch and deadlock, is in
`matching/`.
"""
