"""The referee's side of the connection to ranks in other processes.

`codec` (fed by the processes engine) and `referee_server` (TCP, for torchrun) turn bytes into
announcements; `remote_referee` keeps what each rank has announced and asks the one referee of
`matching/`; `remote_journal` writes the run's journal; `remote_check_host` answers the checks
that look back.
"""
