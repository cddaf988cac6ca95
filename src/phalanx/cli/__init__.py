"""The command line: one module per command, and the output of ranks.

Parses options, calls the engines and prints. What the pytest plugin or `phalanx.run` needs as
well belongs in a lower layer.
"""
