"""What ranks see of faults, measured on real Gloo and on threads."""
