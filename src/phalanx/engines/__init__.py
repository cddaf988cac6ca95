"""How ranks live and end: threads of this process (`threads`), processes of this machine
(`processes`), or processes that torch's launcher starts (`torchrun`).

`world` is what users have, `outcome` what a run came to. `processes` and `torchrun` share what
a rank in a process of its own needs (`remote`), how calls are judged there (`referee`), and
how functions and tensors travel (`serialization`).

To add an engine for functions: write a class that offers what `engine.Engine` says, make it in
`engine.make_engine`, and name it in `ENGINES` and `FUNCTION_ENGINES` of `phalanx.options`. No
engine imports another.
"""
