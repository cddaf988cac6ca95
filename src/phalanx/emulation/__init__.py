"""What a process has and a thread has not, so that ranks can share one interpreter."""
