"""torch's test classes and helpers, under torch's names, on our engines."""
