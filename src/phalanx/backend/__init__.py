"""torch's process group on top of the baton: groups, calls, and the per-rank state of torch.

This folder holds the group itself and what all calls pass: `process_group` (torch's methods)
over `endpoint` (one rank's end of a group), `arguments` and `overlaps` (is the call valid by
itself), `session` (what ranks share), `torch_world` and `torch_patches` (how torch is led
here), `group_history` and `group_reuse`. Subfolders hold one subject each. Used by the engines.
Waits only through the baton.
"""
