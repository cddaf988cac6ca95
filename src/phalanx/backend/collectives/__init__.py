"""The meaning of each collective: what a call carries and how its data moves."""
