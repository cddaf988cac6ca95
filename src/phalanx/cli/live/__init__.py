"""What is shown of a run while it goes on: `phalanx run --live` and `phalanx look`."""
