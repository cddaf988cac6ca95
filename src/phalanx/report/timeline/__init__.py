"""A recorded run to look at: one table of calls, and its text, page, trace and numbers."""
