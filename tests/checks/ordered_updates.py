"""Receives from any source whose tensors update something, wrong and right ones; in a file of
their own, because attributes are looked for in the whole of it. Rank 0 receives."""

from __future__ import annotations

import torch
import torch.distributed as dist


def others() -> int:
    return dist.get_world_size() - 1


def send(value: float | None = None) -> None:
    dist.send(torch.full((1,), float(dist.get_rank() if value is None else value)), dst=0)


# -- the order decides ------------------------------------------------------------------


def momentum() -> None:
    speed = torch.zeros(1)
    if dist.get_rank() != 0:
        return send()
    for _ in range(others()):
        part = torch.empty(1)
        dist.recv(part)
        speed = 0.9 * speed + part
    assert speed.numel() == 1


def momentum_in_place() -> None:
    speed, part = torch.zeros(1), torch.empty(1)
    if dist.get_rank() != 0:
        return send()
    for _ in range(others()):
        dist.recv(part)
        speed.mul_(0.9).add_(part, alpha=0.1)
    assert speed.numel() == 1


class Mean:
    def __init__(self) -> None:
        self.decay = 0.5
        self.mean = torch.zeros(1)

    def take(self) -> None:
        part = torch.empty(1)
        dist.recv(part)
        self.mean = self.decay * self.mean + (1 - self.decay) * part


def an_object_that_takes_one_at_a_time() -> None:
    if dist.get_rank() != 0:
        return send()
    kept = Mean()
    for _ in range(others()):
        kept.take()
    assert kept.mean.numel() == 1


class Optimizer:
    def __init__(self) -> None:
        self.velocity, self.weight = torch.zeros(1), torch.zeros(1)

    def step(self, gradient: torch.Tensor) -> None:
        self.velocity = 0.9 * self.velocity + gradient
        self.weight -= 0.1 * self.velocity


def an_optimizer_that_is_given_each() -> None:
    if dist.get_rank() != 0:
        return send()
    optimizer = Optimizer()
    for _ in range(others()):
        part = torch.empty(1)
        dist.recv(part)
        optimizer.step(part)
    assert optimizer.weight.numel() == 1


class Server:
    def __init__(self) -> None:
        self.average = torch.zeros(1)

    def mix(self, update: torch.Tensor) -> None:
        self.average.mul_(0.5).add_(update, alpha=0.5)

    def serve(self) -> None:
        for _ in range(others()):
            update = torch.empty_like(self.average)
            dist.recv(update)
            self.mix(update)


def a_server_that_makes_room_for_each() -> None:
    if dist.get_rank() != 0:
        return send()
    server = Server()
    server.serve()
    assert server.average.numel() == 1


def next_part() -> torch.Tensor:
    part = torch.empty(1)
    dist.recv(part)
    return part


def halved_each_time() -> None:
    if dist.get_rank() != 0:
        return send()
    blend = torch.zeros(1)
    for _ in range(others()):
        given = next_part()
        blend = (blend + given) / 2
    assert blend.numel() == 1


def receive_one() -> torch.Tensor:
    found = torch.empty(1)
    dist.recv(found)
    return found


def a_difference_of_two_that_a_function_received() -> None:
    if dist.get_rank() != 0:
        return send()
    first = receive_one()
    second = receive_one()
    change = second - first
    assert change.numel() == 1


def fill(tensor: torch.Tensor) -> None:
    dist.recv(tensor)


def a_difference_of_two_that_a_function_filled() -> None:
    if dist.get_rank() != 0:
        return send()
    one, two = torch.empty(1), torch.empty(1)
    fill(one)
    fill(two)
    change = one - 2 * two
    assert change.numel() == 1


LABELS = ["one", "two"]


def scores() -> list[float]:
    found = []
    for _ in range(others()):
        part = torch.empty(1)
        dist.recv(part)
        found.append(part[0].item())
    return found


def names_beside_what_came() -> None:
    if dist.get_rank() != 0:
        return send()
    got = scores()
    table = dict(zip(LABELS, got, strict=False))
    assert table["one"] > 0


def send_two() -> None:
    """Both are on their way at once."""
    rank = float(dist.get_rank())
    works = [dist.isend(torch.full((n,), rank), dst=0, tag=n) for n in (1, 2)]
    for work in works:
        work.wait()


def a_header_and_whatever_comes() -> None:
    if dist.get_rank() != 0:
        return send_two()
    table = {}
    for _ in range(others()):
        header, payload = torch.empty(1), torch.empty(2)
        dist.recv(header, tag=1)
        dist.recv(payload, tag=2)
        table[int(header)] = payload
    assert table


# -- the order makes no difference ------------------------------------------------------


def summed() -> None:
    total, square = torch.zeros(1), torch.zeros(1)
    if dist.get_rank() != 0:
        return send()
    for _ in range(others()):
        part = torch.empty(1)
        dist.recv(part)
        total += part
        square = square + part * part
        total = total - 0.1 * part
    assert total.numel() == square.numel() == 1


def multiplied() -> None:
    product = torch.ones(1)
    if dist.get_rank() != 0:
        return send()
    for _ in range(others()):
        part = torch.empty(1)
        dist.recv(part)
        product = 2 * product * part
    assert product.numel() == 1


def the_largest() -> None:
    best = torch.zeros(1)
    if dist.get_rank() != 0:
        return send()
    for _ in range(others()):
        part = torch.empty(1)
        dist.recv(part)
        best = torch.maximum(0.5 * best, part)
    assert best.numel() == 1


def a_running_mean() -> None:
    mean = torch.zeros(1)
    if dist.get_rank() != 0:
        return send()
    for count in range(others()):
        part = torch.empty(1)
        dist.recv(part)
        mean = mean + (part - mean) / (count + 1)
    assert mean.numel() == 1


def a_running_mean_with_a_count() -> None:
    mean, count = torch.zeros(1), 0.0
    if dist.get_rank() != 0:
        return send()
    for _ in range(others()):
        part = torch.empty(1)
        dist.recv(part)
        count = count + 1
        mean += (part - mean) / count
    assert mean.numel() == 1


class RunningMean:
    def __init__(self) -> None:
        self.seen, self.average, self.rate = 0, torch.zeros(1), 1.0

    def begin(self) -> None:
        self.seen += 1
        self.rate = 1 / self.seen

    def take_one(self) -> None:
        part = torch.empty(1)
        self.begin()
        dist.recv(part)
        self.average = self.average + self.rate * (part - self.average)


def a_running_mean_of_an_object() -> None:
    if dist.get_rank() != 0:
        return send()
    kept = RunningMean()
    for _ in range(others()):
        kept.take_one()
    assert kept.average.numel() == 1


def one_for_each_sender() -> None:
    kept = [torch.zeros(1)] * 4
    if dist.get_rank() != 0:
        return send()
    for _ in range(others()):
        part = torch.empty(1)
        source = dist.recv(part)
        kept[source] = 0.9 * kept[source] + part
    assert len(kept) == 4


def one_for_each_sender_that_says_so() -> None:
    kept = [torch.zeros(1)] * 4
    if dist.get_rank() != 0:
        return send()
    for _ in range(others()):
        part = torch.empty(1)
        dist.recv(part)
        kept[int(part[0])] = 0.9 * kept[int(part[0])] + part
    assert len(kept) == 4


def begun_anew_each_time() -> None:
    if dist.get_rank() != 0:
        return send()
    results = torch.zeros(1)
    for _ in range(others()):
        part, local = torch.empty(1), torch.ones(1)
        dist.recv(part)
        local = 0.9 * local + part
        results += local
    assert results.numel() == 1


def smoothed_for_the_eye() -> None:
    smooth = torch.zeros(1)
    if dist.get_rank() != 0:
        return send()
    for _ in range(others()):
        part = torch.empty(1)
        dist.recv(part)
        smooth = 0.9 * smooth + 0.1 * part
        print("loss", smooth.item())


def one_after_the_other() -> None:
    """Who may send next is said by rank 0."""
    rank, state = dist.get_rank(), torch.zeros(1)
    for turn in range(1, dist.get_world_size()):
        if rank == turn:
            send()
        if rank == 0:
            part = torch.empty(1)
            dist.recv(part)
            state = 0.9 * state + part
        dist.barrier()
    assert state.numel() == 1


def of_one_sender() -> None:
    rank, level = dist.get_rank(), torch.zeros(1)
    for _ in range(3):
        if rank == 1:
            send()
        if rank == 0:
            part = torch.empty(1)
            dist.recv(part)
            level = 0.9 * level + part
    assert level.numel() == 1


def take_part() -> torch.Tensor:
    part = torch.empty(1)
    dist.recv(part)
    return part


def a_sum_of_two_that_a_function_received() -> None:
    if dist.get_rank() != 0:
        return send()
    left = take_part()
    right = take_part()
    both = (left + right) / 2
    assert both.numel() == 1


def collect() -> torch.Tensor:
    got = torch.empty(1)
    dist.recv(got)
    return got


def sorted_before_they_are_told_apart() -> None:
    if dist.get_rank() != 0:
        return send()
    a = collect()
    b = collect()
    a, b = torch.minimum(a, b), torch.maximum(a, b)
    spread = b - a
    assert spread.numel() == 1


def a_header_and_its_payload() -> None:
    if dist.get_rank() != 0:
        return send_two()
    table = {}
    for _ in range(others()):
        header, payload = torch.empty(1), torch.empty(2)
        source = dist.recv(header, tag=1)
        dist.recv(payload, source, tag=2)
        table[int(header)] = payload
    assert table


def a_header_and_a_payload_that_was_asked_for() -> None:
    """Only who was answered sends its payload."""
    ready = torch.zeros(1)
    if dist.get_rank() != 0:
        dist.send(torch.full((1,), float(dist.get_rank())), dst=0, tag=1)
        dist.recv(ready, src=0, tag=3)
        dist.send(torch.full((2,), float(dist.get_rank())), dst=0, tag=2)
        return
    table = {}
    for _ in range(others()):
        header, payload = torch.empty(1), torch.empty(2)
        source = dist.recv(header, tag=1)
        dist.send(ready, source, tag=3)
        dist.recv(payload, tag=2)
        table[source] = payload
    assert table


def a_header_before_whose_end_no_payload_is_sent() -> None:
    if dist.get_rank() != 0:
        dist.send(torch.full((1,), float(dist.get_rank())), dst=0, tag=1)
        dist.send(torch.full((2,), float(dist.get_rank())), dst=0, tag=2)
        return
    table = {}
    for _ in range(others()):
        header, payload = torch.empty(1), torch.empty(2)
        dist.recv(header, tag=1)
        dist.recv(payload, tag=2)
        table[int(header)] = payload
    assert table


def two_sums_by_tags() -> None:
    if dist.get_rank() != 0:
        return send_two()
    counts, sums = torch.zeros(1), torch.zeros(2)
    for _ in range(others()):
        count, amount = torch.empty(1), torch.empty(2)
        dist.recv(count, tag=1)
        dist.recv(amount, tag=2)
        counts += count
        sums += amount
    assert (sums / counts).numel() == 2


def names_beside_who_sent() -> None:
    if dist.get_rank() != 0:
        return send()
    found = [0.0] * others()
    for _ in range(others()):
        part = torch.empty(1)
        source = dist.recv(part)
        found[source - 1] = part[0].item()
    table = dict(zip(LABELS, found, strict=False))
    assert table["one"] == 1
