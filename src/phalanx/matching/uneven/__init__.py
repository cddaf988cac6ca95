"""How ranks parted that should do the same number of calls: counts for each line, members that
do not come, and the branches of the source that lead past a call. Pure; reads the journal."""
