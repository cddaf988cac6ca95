"""Who meets whom and who waits for whom: slots, wait graph, rules of agreement. No torch."""
