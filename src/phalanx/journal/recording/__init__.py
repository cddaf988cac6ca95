"""A journal on disk: its lines, its file, and who writes it while a run goes on."""
