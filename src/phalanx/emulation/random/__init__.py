"""Random generators of torch, Python and NumPy, for each rank its own."""
