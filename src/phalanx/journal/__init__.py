"""What happened in a run, as small frozen events in bounded memory: engines write it; checks,
reports and users read it. No torch and no waiting. `docs/journal.md` has the schema."""
