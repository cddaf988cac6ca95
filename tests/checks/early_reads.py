"""Programs that read keys of stores which others change, wrong and right ones; in a file of
their own, because functions and attributes are looked for in the whole of it."""

from __future__ import annotations

import logging
import threading
import time

import torch
import torch.distributed as dist

log = logging.getLogger(__name__)


def store() -> dist.Store:
    return dist.PrefixStore("early", dist.distributed_c10d._get_default_store())


def meet_at(key: str, n: int) -> None:
    store().add(key, 1)
    while int(store().get(key)) < n:
        time.sleep(0.001)


def rounds(barrier) -> None:
    """Rank 0 replaces a plan, everybody reads it, with a barrier in front and behind."""
    for epoch in range(3):
        if dist.get_rank() == 0:
            store().set("plan", f"epoch {epoch}")
        barrier(2 * epoch)
        store().get("plan").decode()
        barrier(2 * epoch + 1)
    dist.barrier()


# -- barriers that are none -------------------------------------------------------------


def one_key_for_all_rounds() -> None:
    rounds(lambda _: meet_at("here", dist.get_world_size()))


def one_key_asked_by_add() -> None:
    def barrier(_: int) -> None:
        store().add("here", 1)
        while store().add("here", 0) < dist.get_world_size():
            time.sleep(0.001)

    rounds(barrier)


def one_key_and_a_break() -> None:
    def barrier(_: int) -> None:
        store().add("here", 1)
        while True:
            here = int(store().get("here"))
            if here >= dist.get_world_size():
                break
            time.sleep(0.001)

    rounds(barrier)


def one_key_behind_a_method() -> None:
    class Barrier:
        def __init__(self) -> None:
            self.n = dist.get_world_size()

        def arrived(self) -> int:
            return int(store().get("here"))

        def __call__(self, _: int) -> None:
            store().add("here", 1)
            while self.arrived() < self.n:
                time.sleep(0.001)

    rounds(Barrier())


def one_key_that_is_waited_for() -> None:
    def barrier(_: int) -> None:
        store().set(f"here {dist.get_rank()}", "1")
        store().wait([f"here {rank}" for rank in range(dist.get_world_size())])

    rounds(barrier)


def the_last_one_opens_a_door_that_stays_open() -> None:
    def barrier(_: int) -> None:
        if store().add("here", 1) == dist.get_world_size():
            store().set("door", "open")
        store().wait(["door"])

    rounds(barrier)


def two_keys_in_turn() -> None:
    rounds(lambda number: meet_at(f"here {number % 2}", dist.get_world_size()))


# -- barriers that are ------------------------------------------------------------------


def a_key_for_each_round() -> None:
    rounds(lambda number: meet_at(f"here {number}", dist.get_world_size()))


def a_limit_that_grows() -> None:
    rounds(lambda number: meet_at("here", (number + 1) * dist.get_world_size()))


def a_limit_that_grows_with_a_break() -> None:
    done = [0]

    def barrier(_: int) -> None:
        done[0] += dist.get_world_size()
        store().add("here", 1)
        for _ in range(100000):
            if int(store().get("here")) >= done[0]:
                break
            time.sleep(0.001)

    rounds(barrier)


def the_last_one_opens_a_door_for_each_round() -> None:
    def barrier(number: int) -> None:
        if store().add(f"here {number}", 1) == dist.get_world_size():
            store().set(f"door {number}", "open")
        store().wait([f"door {number}"])

    rounds(barrier)


def a_limit_that_the_object_counts() -> None:
    class Barrier:
        def __init__(self) -> None:
            self.round = 0

        def __call__(self, _: int) -> None:
            self.round += 1
            store().add("here", 1)
            while int(store().get("here")) < self.round * dist.get_world_size():
                time.sleep(0.001)

    rounds(Barrier())


def a_key_of_each_rank_and_round() -> None:
    def barrier(number: int) -> None:
        store().set(f"{number}/{dist.get_rank()}", "1")
        for rank in range(dist.get_world_size()):
            store().get(f"{number}/{rank}")

    rounds(barrier)


def a_key_that_is_gone_when_it_was_read() -> None:
    for step in range(3):
        if dist.get_rank() == 0:
            store().set("plan", str(step))
            store().set("ready", "1")
            while store().check(["ready"]):
                time.sleep(0.001)
        elif dist.get_rank() == 1:
            store().wait(["ready"])
            store().get("plan").decode()
            store().delete_key("ready")
    dist.barrier()


# -- counters that are read too early ---------------------------------------------------


def a_sum_that_is_used() -> None:
    store().add("samples", 10 + dist.get_rank())
    total = int(store().get("samples"))
    dist.all_reduce(torch.ones(1) / total)


def a_sum_that_a_function_returns() -> None:
    def count(n: int) -> int:
        store().add("samples", n)
        return int(store().get("samples"))

    weight = 1 / count(10 + dist.get_rank())
    print("weight", weight)


def a_sum_asked_by_add() -> None:
    store().add("samples", 10)
    total = store().add("samples", 0)
    dist.all_reduce(torch.full((1,), float(total)))


def a_sum_of_the_others() -> None:
    if dist.get_rank() == 0:
        dist.new_group(list(range(int(store().get("alive")))))
    else:
        store().add("alive", 1)
        dist.new_group([0, 1, 2][: 1 + (dist.get_rank() > 0)])


def a_sum_in_an_attribute() -> None:
    class Loader:
        def __init__(self) -> None:
            store().add("lines", 5)
            self.lines = int(store().get("lines"))

        def share(self) -> torch.Tensor:
            return torch.ones(1) / self.lines

    dist.all_reduce(Loader().share())


class Samples:
    def add(self, n: int) -> None:
        store().add("samples", n)

    def total(self) -> int:
        return store().add("samples", 0)


def a_total_that_one_rank_prints() -> None:
    samples = Samples()
    samples.add(10 + dist.get_rank())
    if dist.get_rank() == 0:
        print("samples:", samples.total())
    dist.barrier()


# -- counters that may be read ----------------------------------------------------------


def a_sum_behind_a_barrier() -> None:
    store().add("samples", 10)
    dist.barrier()
    dist.all_reduce(torch.ones(1) / int(store().get("samples")))


def a_sum_behind_a_group() -> None:
    store().add("samples", 10)
    dist.new_group([0, 1, 2])
    dist.all_reduce(torch.ones(1) / int(store().get("samples")))


def a_sum_behind_a_count() -> None:
    store().add("samples", 10)
    meet_at("counted", dist.get_world_size())
    dist.all_reduce(torch.ones(1) / int(store().get("samples")))


def a_sum_that_is_waited_for() -> None:
    store().add("samples", 10)
    while int(store().get("samples")) < 10 * dist.get_world_size():
        time.sleep(0.001)
    dist.all_reduce(torch.ones(1) / int(store().get("samples")))


def a_sum_that_is_waited_for_by_hand() -> None:
    store().add("samples", 10)
    total = 0
    while total < 10 * dist.get_world_size():
        total = int(store().get("samples"))
    dist.all_reduce(torch.ones(1) / total)


def tickets() -> None:
    for _ in range(3):
        mine = store().add("ticket", 1) - 1
        store().set(f"result {mine}", str(mine))
    dist.barrier()


def a_sum_that_is_printed() -> None:
    store().add("done", 1)
    print(f"{int(store().get('done'))} of {dist.get_world_size()}")
    dist.barrier()


def a_total_behind_a_barrier() -> None:
    samples = Samples()
    samples.add(10)
    dist.barrier()
    if dist.get_rank() == 0:
        print("samples:", samples.total())


def a_total_now_and_then() -> None:
    samples = Samples()
    for step in range(4):
        samples.add(10)
        if dist.get_rank() == 0 and step % 2 == 0:
            print("samples:", samples.total())
    dist.barrier()


def a_total_on_the_way() -> None:
    samples = Samples()
    for step in range(4):
        samples.add(10)
        if dist.get_rank() == 0 and step == 2:
            print("samples:", samples.total())
    dist.barrier()


def a_total_of_those_who_are_done() -> None:
    store().add("done", 1)
    if dist.get_rank() == 0:
        total = store().add("done", 0)
        print(f"{total} of {dist.get_world_size()} are done")
    dist.barrier()


def a_total_that_somebody_watches() -> None:
    samples = Samples()
    if dist.get_rank() == 0:
        print("samples:", samples.total())
    else:
        samples.add(10)
    dist.barrier()


def a_sum_that_is_logged() -> None:
    for _ in range(3):
        store().add("done", 1)
        done = int(store().get("done"))
        log.info("%d done", done)
    dist.barrier()


def a_number_that_one_rank_gives() -> None:
    if dist.get_rank() == 0:
        store().add("batch", 32)
    dist.all_reduce(torch.ones(1) / int(store().get("batch")))


def a_flag_that_ends_a_loop() -> None:
    store().add("stop", 0)
    for step in range(10):
        if step == 5 and dist.get_rank() == 1:
            store().add("stop", 1)
        if int(store().get("stop")):
            break
    dist.barrier()


def a_monitor_beside() -> None:
    seen = []

    def watch() -> None:
        seen.append(int(store().get("done")) / 3)
        store().set("watched", str(seen[-1]))

    if dist.get_rank() == 0:
        watcher = threading.Thread(target=watch)
        watcher.start()
        watcher.join()
    else:
        store().add("done", 1)
    dist.barrier()


# -- keys that are set again ------------------------------------------------------------


def progress_taken_for_final() -> None:
    rank = dist.get_rank()
    for step in range(5):
        store().set(f"step {rank}", str(step))
    if rank == 0:
        resume = min(int(store().get(f"step {r}")) for r in range(dist.get_world_size()))
        print("resume from", resume)
    dist.barrier()


def the_last_checkpoint() -> None:
    if dist.get_rank() == 0:
        for step in range(4):
            store().set("checkpoint", str(step))
    else:
        step = int(store().get("checkpoint"))
        torch.manual_seed(step)
    dist.barrier()


def progress_collected_in_a_list() -> None:
    rank = dist.get_rank()
    for step in range(4):
        store().set(f"at {rank}", str(step))
    steps = []
    for other in range(dist.get_world_size()):
        steps.append(int(store().get(f"at {other}")))
    slowest = torch.tensor(min(steps))
    dist.all_reduce(slowest)


def a_rate_that_each_round_takes() -> None:
    if dist.get_rank() == 0:
        for step in range(5):
            store().set("rate", str(1 / (step + 1)))
            time.sleep(0.001)
    else:
        weight = torch.ones(1)
        for _ in range(5):
            rate = float(store().get("rate"))
            weight -= rate * weight
            time.sleep(0.001)
        print(weight.item())
    dist.barrier()


def a_plan_in_a_loop_where_the_writer_sleeps() -> None:
    plans = []
    for step in range(4):
        if dist.get_rank() == 0:
            time.sleep(0.001)
            store().set("plan", f"plan {step}")
        plans.append(store().get("plan").decode())
    print(plans)
    dist.barrier()


# -- keys that may be set again ---------------------------------------------------------


def progress_that_is_printed() -> None:
    rank = dist.get_rank()
    for step in range(4):
        store().set(f"at {rank}", str(step))
    if rank == 0:
        print([int(store().get(f"at {r}")) for r in range(dist.get_world_size())])
    dist.barrier()


def the_slowest_is_printed_now_and_then() -> None:
    rank = dist.get_rank()
    for step in range(4):
        store().set(f"at {rank}", str(step))
        dist.barrier()
        if rank == 0 and step % 2:
            slowest = min(int(store().get(f"at {r}")) for r in range(dist.get_world_size()))
            print("slowest", slowest)


def a_heartbeat() -> None:
    if dist.get_rank() == 0:
        for beat in range(4):
            store().set("beat", str(beat))
    else:
        last = float(store().get("beat"))
        if time.time() - last < 0:
            log.warning("rank 0 is late")
    dist.barrier()


def the_latest_weights_each_time() -> None:
    if dist.get_rank() == 0:
        for version in range(6):
            store().set("version", str(version))
    else:
        for _ in range(3):
            torch.manual_seed(int(store().get("version")))
    dist.barrier()


def a_watcher_that_sleeps_as_often() -> None:
    if dist.get_rank() == 0:
        for step in range(5):
            store().set("at", str(step))
            time.sleep(0.001)
    else:
        seen = []
        for _ in range(5):
            at = int(store().get("at"))
            print(f"{100 * at / 5:.0f} %")
            seen.append(at)
            time.sleep(0.001)
        print("seen", seen)
    dist.barrier()


def a_rate_for_each_round() -> None:
    weight = torch.ones(1)
    for step in range(5):
        if dist.get_rank() == 0:
            store().set(f"rate {step}", str(1 / (step + 1)))
        weight -= float(store().get(f"rate {step}")) * weight
        time.sleep(0.001)
    dist.barrier()


def a_rate_that_is_looked_for_until_it_is_new() -> None:
    if dist.get_rank() == 0:
        store().set("rate", "0.1")
        store().set("rate", "0.05")
    else:
        for _ in range(2):
            rate = float(store().get("rate"))
            if rate < 0.1:
                break
            time.sleep(0.001)
        torch.manual_seed(int(100 * rate))
    dist.barrier()


def a_state_that_is_waited_for() -> None:
    if dist.get_rank() == 0:
        for state in ("loading", "warm", "ready"):
            store().set("state", state)
    else:
        while store().get("state") != b"ready":
            time.sleep(0.001)
    dist.barrier()


def a_clock_that_is_waited_for() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(4):
        store().set(f"clock {rank}", str(step))
        while step - min(int(store().get(f"clock {r}")) for r in range(world)) > 1:
            time.sleep(0.001)
    dist.barrier()


def final_and_behind_a_barrier() -> None:
    rank = dist.get_rank()
    for step in range(4):
        store().set(f"at {rank}", str(step))
    dist.barrier()
    slowest = min(int(store().get(f"at {r}")) for r in range(dist.get_world_size()))
    dist.all_reduce(torch.tensor(slowest))


def final_and_said_so() -> None:
    rank = dist.get_rank()
    for step in range(4):
        store().set(f"at {rank}", str(step))
    store().set(f"through {rank}", "1")
    store().wait([f"through {r}" for r in range(dist.get_world_size())])
    slowest = min(int(store().get(f"at {r}")) for r in range(dist.get_world_size()))
    dist.all_reduce(torch.tensor(slowest))


def a_key_that_is_set_once() -> None:
    rank = dist.get_rank()
    store().set(f"size {rank}", str(rank + 1))
    total = sum(int(store().get(f"size {r}")) for r in range(dist.get_world_size()))
    dist.all_reduce(torch.tensor(total))
