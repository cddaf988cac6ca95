"""Programs that start their own ranks: the processes that they start become ranks."""
