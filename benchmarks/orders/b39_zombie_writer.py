# ranks: 2
# decides: fault
# kind: rank-failed
# lines: 25,62
# minimum: 1
# faults: stop,delay
# report: https://github.com/kagkarlsson/db-scheduler/pull/432
# what: a trainer that was stopped comes back and writes its checkpoint over that of the
#     rank that has taken over
import time
from datetime import timedelta

import torch.distributed as dist

STALE = 0.03


class Trainer:
    def __init__(self, store, name, seen):
        self.store, self.name, self.seen = store, name, seen

    def write(self, step):
        """Whether this trainer still leads."""
        mine = f"{self.name} {step}"
        self.store.set("checkpoint", mine)
        self.seen = mine
        return True


def train(trainer, steps):
    for step in steps:
        time.sleep(0.005)
        if not trainer.write(step):
            return
    trainer.store.set("finished", "1")


def stand_by(store):
    seen, since = b"", time.monotonic()
    while not store.check(["finished"]):
        found = store.get("checkpoint")
        if found != seen:
            seen, since = found, time.monotonic()
        elif time.monotonic() - since > STALE:
            trainer = Trainer(store, "standby", seen.decode())
            if trainer.write(100):
                store.set("taken over", "1")
            return train(trainer, (101, 102))
        time.sleep(0.005)


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=6))
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        store.set("checkpoint", "start 0")
    dist.barrier()
    trainer = Trainer(store, "trainer", "start 0")
    train(trainer, (1, 2, 3)) if dist.get_rank() == 0 else stand_by(store)
    dist.barrier()
    last = store.get("checkpoint").decode()
    assert not store.check(["taken over"]) or last == "standby 102", f"the last is {last}"


if __name__ == "__main__":
    main()
