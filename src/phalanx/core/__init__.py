"""The baton, and the schedules, clocks, monitor and launcher that it works with.

Used by the backend and the engines. Must never import torch.
"""
