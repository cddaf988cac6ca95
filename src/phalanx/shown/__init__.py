"""How what a program says is shown: stacks folded, secrets hidden. No torch, no layout."""
