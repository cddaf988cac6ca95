"""What the referee of ranks in other processes writes down, and what checks may ask of it."""
