"""Objects of classes that each rank has of its own: they travel, are saved, registered, sent to
processes, and go when the run ends."""

from __future__ import annotations

import gc
import importlib.util
import multiprocessing
import sys
import textwrap
import weakref
from pathlib import Path

import pytest

import phalanx
from phalanx.emulation.modules.attribute_stores import stored
from phalanx.emulation.modules.isolation_rule import IsolationRule
from phalanx.errors import RankFailedError
from tests.emulation.modules.module_programs import run_script, surroundings, write

KINDS = """
import collections, dataclasses, enum, functools, typing, torch

@dataclasses.dataclass
class Box:
    value: int
    inner: "Box | None" = None

@dataclasses.dataclass(frozen=True, slots=True)
class Slim:
    value: int

class Colour(enum.Enum):
    RED = 1

class Flag(enum.IntFlag):
    A = 1
    B = 2

Point = collections.namedtuple("Point", "x y")

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

class Fault(Exception):
    pass

class Base:
    known = []
    def __init_subclass__(cls):
        Base.known.append(cls)

class Derived(Base):
    class Nested:
        pass

@functools.singledispatch
def name(thing):
    return "thing"

@name.register
def _(thing: Box):
    return "box"

def double(x):
    return 2 * x
"""
FILES = {"kinds/__init__.py": "", "kinds/all.py": KINDS}


def test_objects_arrive_as_those_of_the_receiver(tmp_path: Path) -> None:
    text = """
        from kinds.all import *
        from kinds import all as kinds
        mine = (Box(rank, Box(7)), Slim(rank), Colour.RED, Flag.A | Flag.B, Point(1, rank),
                Net(), Derived, Derived.Nested(), double, Fault("x"))

        def check(found, sender):
            box, slim, colour, flag, point, net, derived, nested, function, fault = found
            assert type(box) is Box and type(box.inner) is Box and box == Box(sender, Box(7))
            assert type(slim) is Slim and slim.value == sender
            assert colour is Colour.RED and flag is Flag.A | Flag.B
            assert type(point) is Point and point == (1, sender)
            assert type(net) is Net and derived is Derived and function is double
            assert type(nested) is Derived.Nested and type(fault) is Fault
            assert name(box) == "box" and Base.known == [Derived]

        everyone = [None] * size
        dist.all_gather_object(everyone, mine)
        for sender, each in enumerate(everyone):
            check(each, sender)
        one = [mine if rank == 1 else None]
        dist.broadcast_object_list(one, 1)
        check(one[0], 1)
        gathered = [None] * size if rank == 0 else None
        dist.gather_object(mine, gathered, 0)
        for sender, each in enumerate(gathered or ()):
            check(each, sender)
        share = [None]
        dist.scatter_object_list(share, [mine] * size if rank == 2 else None, 2)
        check(share[0], 2)
        if rank == 0:
            dist.send_object_list([mine], 1)
        if rank == 1:
            got = [None]
            dist.recv_object_list(got, 0)
            check(got[0], 0)
        dist.barrier()
        """
    run_script(tmp_path, text, FILES)


def test_pickle_copies_and_looks_at_them(tmp_path: Path) -> None:
    text = """
        import copy, inspect, io, pickle, threading, typing
        from kinds.all import *
        from kinds import all as kinds
        def look():
            for dumps, loads in ((pickle.dumps, pickle.loads), (pickle._dumps, pickle._loads)):
                assert loads(dumps(Box)) is Box and loads(dumps(Colour.RED)) is Colour.RED
                assert type(loads(dumps(Derived.Nested()))) is Derived.Nested
            seen.append(rank)
        seen, thread = [], threading.Thread(target=look)
        thread.start()  # runs while other ranks do
        dist.barrier()
        thread.join()
        look()
        assert seen == [rank, rank]
        assert type(copy.deepcopy(Box(1, Box(2))).inner) is Box
        assert typing.get_type_hints(Box)["inner"] == typing.Optional[Box]
        assert inspect.getmodule(Box) is inspect.getmodule(double) is kinds
        assert inspect.getsource(double).startswith("def double(x):")
        assert inspect.getfile(Net) == kinds.__file__
        buffer = io.BytesIO()
        torch.save(Net(), buffer)
        dist.barrier()
        buffer.seek(0)
        assert type(torch.load(buffer, weights_only=False)) is Net
        torch.serialization.add_safe_globals([Box])
        dist.barrier()
        buffer = io.BytesIO()
        torch.save({"box": Box(rank)}, buffer)
        buffer.seek(0)
        box = torch.load(buffer, weights_only=True)["box"]
        assert type(box) is Box and box.value == rank
        dist.barrier()
        torch.serialization.clear_safe_globals()
        """
    run_script(tmp_path, text, FILES)


def test_what_modules_register_is_each_rank_s(tmp_path: Path) -> None:
    operators = """
        import multiprocessing, torch, torch.utils._pytree as pytree
        STATE = None
        library = torch.library.Library("phalanx_modules", "DEF")
        library.define("plus(Tensor x) -> Tensor")
        @torch.library.impl(library, "plus", "CPU")
        def plus(x):
            return x + STATE
        for name in ("one", "two"):
            torch.library.define(f"phalanx_modules_too::{name}", "(Tensor x) -> Tensor")
            torch.library.impl(f"phalanx_modules_too::{name}", "cpu")(lambda x: x * STATE)
            torch.library.register_fake(f"phalanx_modules_too::{name}")(torch.empty_like)
        @torch.library.custom_op("phalanx_modules_three::minus", mutates_args=())
        def minus(x: torch.Tensor) -> torch.Tensor:
            return x - STATE
        minus.register_fake(torch.empty_like)
        minus.register_autograd(lambda ctx, gradient: gradient * STATE)
        class Node:
            def __init__(self, value):
                self.value = value
        pytree.register_pytree_node(Node, lambda n: ([n.value], 0), lambda v, c: Node(v[0]))
        def make(*args):
            return STATE
        torch.distributed.Backend.register_backend("phalanx_own", make, devices=["cpu"])
        multiprocessing.set_start_method("spawn")
        """
    text = """
        import operators
        operators.STATE = rank + 1
        dist.barrier()
        x = torch.ones(2, requires_grad=True)
        assert torch.ops.phalanx_modules.plus(x.detach())[0] == rank + 2
        assert torch.ops.phalanx_modules_too.one(x.detach())[0] == rank + 1
        assert torch.ops.phalanx_modules_too.two(x.detach())[0] == rank + 1
        for minus in (operators.minus, torch.ops.phalanx_modules_three.minus):
            x.grad = None
            result = minus(x)
            result.sum().backward()
            assert (result[0].item(), x.grad[0].item()) == (-rank, rank + 1)
        assert operators.pytree.tree_map(lambda v: v + 1, operators.Node(1)).value == 2
        plugin = dist.Backend._plugins["PHALANX_OWN"]
        assert plugin.creator_fn() == rank + 1
        import multiprocessing
        assert multiprocessing.get_start_method() == "spawn"
        """
    import torch

    methods = multiprocessing.get_start_method(allow_none=True)
    for _ in range(2):  # nothing is left that the second time would meet
        run_script(tmp_path, text, {"operators.py": operators})
        assert multiprocessing.get_start_method(allow_none=True) == methods
        assert not hasattr(torch.ops.phalanx_modules, "plus")


def test_what_torch_registers_on_the_way_stays(tmp_path: Path) -> None:
    """A rank may be the first to import a part of torch, or of a library, with operators."""
    import torch

    shared = """
        import torch
        library = torch.library.Library("phalanx_shared", "DEF")
        library.define("same(Tensor x) -> Tensor")
        library.impl("same", lambda x: x + 1, "CPU")
        """
    text = """
        import on_the_way
        assert torch.ops.phalanx_shared.same(torch.zeros(1)).item() == 1
        """
    write(tmp_path, {"on_the_way.py": shared})
    run_script(tmp_path, text, {}, rule=IsolationRule(script=True, shared=("on_the_way",)))
    assert torch.ops.phalanx_shared.same(torch.zeros(1)).item() == 1
    sys.modules.pop("on_the_way")


def test_a_second_registration_by_the_same_rank_is_refused_as_ever(tmp_path: Path) -> None:
    twice = """
        import torch
        one = torch.library.Library("phalanx_twice", "DEF")
        two = torch.library.Library("phalanx_twice", "DEF")
        """
    with pytest.raises(RankFailedError, match="Only a single TORCH_LIBRARY"):
        run_script(tmp_path, "import twice", {"twice.py": twice})


def test_what_modules_replace_in_torch_is_each_rank_s(tmp_path: Path) -> None:
    import torch

    patching = """
        import torch
        SCALE = None
        original, relu = torch.nn.Linear.forward, torch.nn.functional.relu
        def forward(self, x):
            return original(self, x) * SCALE
        class Own(torch.optim.SGD):
            pass
        def apply():
            torch.nn.Linear.forward = forward
            torch.nn.functional.relu = lambda x: relu(x) + SCALE
        torch.optim.SGD = Own
        """
    text = """
        import patching
        patching.SCALE = rank + 2
        patching.apply()
        layer = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(layer.weight)
        for _ in range(3):
            assert layer(torch.ones(1)).item() == rank + 2
            assert torch.nn.functional.relu(torch.ones(1)).item() == rank + 3
            assert torch.optim.SGD is patching.Own
            dist.barrier()
        def late(x):
            return x * patching.SCALE
        torch.nn.functional.gelu = late
        dist.barrier()
        assert torch.nn.functional.gelu(torch.ones(1)).item() == rank + 2
        """
    before = [torch.nn.Linear.forward, torch.nn.functional.relu, torch.optim.SGD]
    for _ in range(2):
        run_script(tmp_path, text, {"patching.py": patching})
        assert before == [torch.nn.Linear.forward, torch.nn.functional.relu, torch.optim.SGD]
    assert torch.nn.functional.gelu.__module__ != "__main__"


def test_what_is_replaced_late_is_each_rank_s_too(tmp_path: Path) -> None:
    """Long after the last module has come: by assignment, by name, in classes, for a while."""
    import torch
    import torch.distributed as dist

    text = """
        import functools
        from unittest import mock
        functional = torch.nn.functional
        for _ in range(30):
            dist.barrier()
        original, calls = dist.all_reduce, []
        def counting(*args, **kwargs):
            calls.append(rank)
            return original(*args, **kwargs)
        dist.all_reduce = counting
        torch.Tensor.whose = property(lambda self: rank)
        setattr(functional, "gelu", functools.partial(max, rank))
        SGD = torch.optim.SGD
        layer = torch.nn.Linear
        layer.extra_repr = lambda self: str(rank)
        for _ in range(3):
            dist.all_reduce(torch.ones(1))
            assert torch.ones(1).whose == rank
            assert functional.gelu(-1) == rank
            assert repr(torch.nn.Linear(1, 1)) == f"Linear({rank})"
            with mock.patch("torch.nn.functional.relu", return_value=rank):
                dist.barrier()
                assert functional.relu(None) == rank
                dist.barrier()
            with mock.patch.object(SGD, "step", autospec=True, return_value=rank):
                dist.barrier()
                assert torch.optim.SGD.step(None) == rank
                dist.barrier()
            dist.barrier()
            assert functional.relu(torch.ones(1)).item() == 1
        assert calls == [rank] * 3
        if rank == 1:
            del torch.Tensor.whose
            dist.all_reduce = original
        dist.barrier()
        assert hasattr(torch.Tensor, "whose") == (rank != 1)
        assert (dist.all_reduce is counting) == (rank != 1)
        """

    def state() -> list[object]:
        functional = torch.nn.functional
        kinds = [torch.nn.Linear.extra_repr, torch.optim.SGD.step]
        return [dist.all_reduce, functional.gelu, functional.relu, *kinds]

    before = state()
    for _ in range(2):
        run_script(tmp_path, text, {})
        assert state() == before
        assert not hasattr(torch.Tensor, "whose")
    with pytest.raises(phalanx.RankFailedError):
        run_script(tmp_path, text + "assert rank\n", {})
    assert state() == before
    assert not hasattr(torch.Tensor, "whose")


def test_which_attributes_code_sets() -> None:
    text = """
        def put(self, module, names):
            self.hidden = module.seen = names["key"].other = 1
            torch.nn.Linear.forward = F.relu = 2
        """
    inside = compile(textwrap.dedent(text), "text", "exec")
    wanted = {("module", "seen"), (None, "other"), ("Linear", "forward"), ("F", "relu")}
    assert stored(inside) == wanted
    many = "\n".join(f"a.b{number} = 0" for number in range(400))
    assert len(stored(compile(many, "text", "exec"))) == 400
    named = "setattr(torch, 'load', 1); patch('torch.nn.Linear.forward'); x = 'a b'"
    wanted = {(None, "load"), ("Linear", "forward")}
    assert stored(compile(named, "text", "exec")) == wanted
    assert stored(compile("use('torch.nn.Linear.forward')", "text", "exec")) == set()


DATA = """
import torch
SCALE = 1
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, index):
        return torch.tensor(index * SCALE)

def work(queue, numbers):
    import sys, data
    own = type(sys.modules) is dict and sys.modules["data"] is data
    queue.put((type(numbers) is Numbers, SCALE, own))
"""


def test_forked_processes_have_the_modules_of_their_rank(tmp_path: Path) -> None:
    text = """
        import data, multiprocessing, os
        data.SCALE = rank + 1
        dist.barrier()
        loader = torch.utils.data.DataLoader(data.Numbers(), batch_size=3, num_workers=2,
                                             multiprocessing_context="fork")
        assert torch.cat(list(loader)).tolist() == [i * (rank + 1) for i in range(6)]
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        process = context.Process(target=data.work, args=(queue, data.Numbers()))
        process.start()
        assert queue.get() == (True, rank + 1, True)
        process.join()
        """
    run_script(tmp_path, text, {"data.py": DATA}, ranks=2)


def test_threads_of_several_ranks_may_fork_at_the_same_time(tmp_path: Path) -> None:
    """Every child has its own rank's modules and variables, and none waits for a lock that a
    thread holds which is not there."""
    text = """
        import data, multiprocessing, os, threading
        data.SCALE, os.environ["WHOSE"] = rank, str(rank)
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        def work():
            import data
            queue.put((data.SCALE, os.environ["WHOSE"]))
        def fork():
            for _ in range(6):
                process = context.Process(target=work)
                process.start()
                process.join()
        threads = [threading.Thread(target=fork) for _ in range(2)]
        for thread in threads:
            thread.start()
        found = [queue.get() for _ in range(12)]
        for thread in threads:
            thread.join()
        assert set(found) == {(rank, str(rank))}
        """
    run_script(tmp_path, text, {"data.py": DATA}, ranks=2)


@pytest.mark.slow
def test_spawned_processes_import_by_name(tmp_path: Path) -> None:
    text = """
        import data, multiprocessing, os
        class Own(data.Numbers):
            pass
        def work(queue, own):
            queue.put((type(own) is Own, data.SCALE, __name__))
        if __name__ == "__main__":
            data.SCALE = int(os.environ["RANK"]) + 1
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            process = context.Process(target=work, args=(queue, Own()))
            process.start()
            assert queue.get() == (True, 1, "__mp_main__")
            process.join()
        """
    run_script(tmp_path, text, {"data.py": DATA}, beginning="", ranks=2)


def make_and_forget() -> list[weakref.ref[object]]:
    import kinds.all  # type: ignore[import-not-found]

    return [weakref.ref(kinds.all), weakref.ref(kinds.all.Box)]


def test_modules_of_runs_that_are_over_are_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, FILES)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = surroundings()[:-3]
    kept: list[weakref.ref[object]] = []
    for _ in range(20):
        for found in phalanx.run(make_and_forget, ranks=2, isolate=("kinds",)):
            kept += found
    gc.collect()
    assert len(kept) == 80 and not [each for each in kept if each() is not None]
    assert surroundings()[:-3] == before and "kinds" not in sys.modules


def test_what_a_failed_run_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"broken/__init__.py": "from . import part", "broken/part.py": "1 / 0"})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importlib.util.find_spec("broken") is not None
    before = surroundings()

    def body() -> None:
        importlib.import_module("broken")

    for _ in range(3):
        with pytest.raises(RankFailedError) as caught:
            phalanx.run(body, ranks=3, isolate=("broken",))
        first = str(caught.value).partition("\n")[0]
        assert first == "ranks 0-2 raised ZeroDivisionError: division by zero"
        assert "broken/part.py:1 in <module>" in str(caught.value)
        assert surroundings() == before and "broken" not in sys.modules
