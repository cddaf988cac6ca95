"""The door for tests: assertions between ranks, and torch's test classes on our engines.

The pytest plugin (`plugin.py`) lives here too and is found by its entry point. Names are
loaded when asked for, because pytest loads this package in every project that has it
installed, and torch takes a second to import.
"""
