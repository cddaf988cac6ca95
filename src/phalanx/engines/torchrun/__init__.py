"""The torchrun engine: torch's own launcher starts the ranks, our checks are attached."""
