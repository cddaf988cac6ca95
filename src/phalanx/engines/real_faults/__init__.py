"""A plan of faults on ranks that are processes: what is killed, stopped, cut and corrupted.

In a rank `rank_faults.py` notices the points and carries out what strikes there; in the program
`fault_course.py` does what belongs to a moment, and remembers what has happened.
"""
