"""Random generators of torch, Python and NumPy: each rank has its own."""
