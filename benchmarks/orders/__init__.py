"""The order benchmark: programs whose bug depends on order, time or a fault, and right ones of
the same shapes. `python -m benchmarks.orders` explores them and says how many schedules each
strategy needs; with `--gloo N` it runs them on plain Gloo and says how often they fail there.

`bNN_name.py` is wrong, `rNN_name.py` is its right twin. `programs.py` has what their headers
say.
"""
