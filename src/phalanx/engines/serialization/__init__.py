"""How functions, arguments, results and tensors travel between processes."""
