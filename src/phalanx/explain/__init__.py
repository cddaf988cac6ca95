"""Why a job hung, from what its ranks left behind: dumps of torch's Flight Recorder, of our
black box, our recordings, and stacks of py-spy. Needs no torch, and trusts no file."""
