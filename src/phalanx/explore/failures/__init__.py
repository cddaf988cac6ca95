"""What is done with a failure: it is repeated, shrunk, told as a story, and kept."""
