"""What the ranks of a run do at this moment, as rows and as a table. No torch, no terminal."""
