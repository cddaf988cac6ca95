"""What a process has and a thread has not: what lets ranks share one interpreter."""
