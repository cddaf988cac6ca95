"""Reports: a verdict, or a recorded run, as text, tables and pictures. Pure; no torch."""
