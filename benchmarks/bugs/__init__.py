"""The bug benchmark: small programs of plain torch.distributed, most of them wrong, each with
what a good tool would say about it. `python -m benchmarks.bugs` runs them on plain Gloo, on
Gloo under TORCH_DISTRIBUTED_DEBUG=DETAIL and on Phalanx, and compares.

One module holds the programs of one class (`a_invalid_call.py`, ...), `correct*.py`
those that are right and look odd.
"""
