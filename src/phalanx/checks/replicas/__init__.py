"""What replicas of one model must have alike: parameters, optimizers, parts of the data."""
