"""The baton and what stands around it: schedules, clocks, the monitor, where ops meet.

Used by the backend and running layers. Knows nothing of torch.
"""
