"""`phalanx explore`: its options, what it shows while it goes on, and what it ends with."""
