"""The conformance suite: thousands of small cases that a backend of torch.distributed must pass
or refuse with a clean error. `phalanx conformance` is its door.

Start reading at `case_model.py` (the words), then `suite.py` (all cases), `case_body.py` (what
runs on a rank), `runner.py` and `judge.py`. A new family of cases is a module in `families/`.
"""
