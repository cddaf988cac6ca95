"""Results of calls that do not come to where the program uses them."""
