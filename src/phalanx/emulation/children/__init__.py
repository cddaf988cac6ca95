"""Programs that start their ranks themselves: processes that they start become ranks."""
