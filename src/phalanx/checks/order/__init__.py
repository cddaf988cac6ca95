"""What is paired crosswise: collectives and messages that meet others than those meant."""
