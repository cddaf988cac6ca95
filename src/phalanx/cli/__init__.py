"""The command line: `phalanx run` and its sisters.

A door: it parses options, calls the layers below and prints. Logic that another door would
want must never live here.
"""
