"""Checks: the rules that look at what ranks did and return findings, by kind.

Pure: no torch, no threads, no text layout. `registry` lists those that look back when a run has
ended. What is decided when calls meet or nobody can move, mismatch and deadlock, is in
`matching/`.
"""
