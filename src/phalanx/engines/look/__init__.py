"""How a run tells what its ranks do while it goes on, and the door at which others ask."""
