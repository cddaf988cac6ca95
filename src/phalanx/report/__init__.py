"""Reports: from a verdict to the text a user reads. Pure; knows the words layer only."""
