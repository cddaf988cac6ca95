# ranks: 3
# kind: mismatch|deadlock|rank-failed
# faulty: 2
# lines: 31,42,44,45
# profile: gloo
# what: rank 2 finds no files in its shard and exits with status 0 while the others gather the statistics
import atexit
import sys

import torch
import torch.distributed as dist

FILES = ["part-0.bin", "part-1.bin"]


def log(msg):
    print(f"[worker {dist.get_rank()}] {msg}", flush=True)


def my_files():
    return FILES[dist.get_rank()::dist.get_world_size()]


def statistics(files):
    gen = torch.Generator().manual_seed(11)
    return {f: torch.rand(16, generator=gen).mean().item() for f in files}


def merge(local):
    everyone = [None for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, local)
    merged = {}
    for part in everyone:
        merged.update(part)
    return merged


if __name__ == "__main__":
    dist.init_process_group("gloo")
    atexit.register(dist.destroy_process_group)
    files = my_files()
    if not files:
        log("nothing to do")
        sys.exit(0)
    merged = merge(statistics(files))
    log(f"{len(merged)} files in all")
    sys.exit(0 if len(merged) == len(FILES) else 1)
