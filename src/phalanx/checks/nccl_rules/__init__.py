"""What NCCL forbids or leaves open where Gloo does not: the rules behind `backend-hazard`."""
