"""What travels to ranks that are processes and back: tensors without copies, functions that no
module holds, and a clear no for the rest."""

from __future__ import annotations

import builtins
import os
import pty
import re
import select
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.engines.serialization import buffers, serialization

GLOO: dict[str, Any] = {"engine": "processes", "backend": "gloo", "timeout": 30.0}
LARGE = 2 * buffers.SMALL


@pytest.fixture(scope="module")
def world():
    with phalanx.World(ranks=2, **GLOO) as opened:
        yield opened


# -- what runs in the ranks ---------------------------------------------------------------


def give_back(thing: Any) -> Any:
    return thing


def add_rank(tensor: torch.Tensor) -> float:
    """Writes into its argument, and looks at it once the other has written, too."""
    tensor.add_(1.0 + dist.get_rank())
    dist.barrier()
    return tensor[0].item()


def add_to_own_part(tensor: torch.Tensor) -> float:
    tensor[dist.get_rank()] += 1.0
    dist.barrier()
    return tensor[:2].sum().item()


def alias(pair: tuple[torch.Tensor, torch.Tensor]) -> float:
    whole, part = pair
    part.fill_(7.0)
    return whole[-1].item()


def grow(size: int) -> torch.Tensor:
    return torch.full((size,), float(dist.get_rank()))


def die_with(tensor: torch.Tensor) -> None:
    tensor.add_(1)
    os._exit(3)


def private_memory() -> int:
    """Bytes of this process's own: a page of a file that it has written to is one of them."""
    text = Path("/proc/self/smaps_rollup").read_text()
    fields = dict(line.split()[:2] for line in text.splitlines()[1:])
    return int(fields["Anonymous:"]) * 1024


def read_all(tensor: torch.Tensor) -> tuple[float, int]:
    before = private_memory()
    total = tensor.sum().item()
    return total, private_memory() - before


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def raise_local() -> None:
    class LocalError(ValueError):
        pass

    raise LocalError("of my own")


# -- tensors ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 100, LARGE // 4, LARGE])
def test_a_tensor_of_any_size_comes_and_goes_whole(world, size) -> None:
    sent = torch.arange(size, dtype=torch.float32)
    for back in world.run(give_back, sent):
        assert torch.equal(back, sent)


@pytest.mark.parametrize("size", [10, LARGE])
def test_nobody_sees_what_another_writes_into_its_argument(world, size) -> None:
    sent = torch.zeros(size)
    assert world.run(add_rank, sent) == [1.0, 2.0]
    assert sent.sum() == 0.0


@pytest.mark.parametrize("size", [10, LARGE])
def test_a_result_belongs_to_the_caller(world, size) -> None:
    first, second = world.run(give_back, torch.zeros(size))
    first.fill_(1.0)
    assert second.sum() == 0.0


@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
@pytest.mark.parametrize("size", [10, LARGE])
def test_what_the_program_put_into_shared_memory_stays_shared(world, size, strategy) -> None:
    usual = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(strategy)
    try:
        sent = torch.zeros(size).share_memory_()
        assert world.run(add_to_own_part, sent) == [2.0, 2.0]
        assert sent[:2].tolist() == [1.0, 1.0]
    finally:
        torch.multiprocessing.set_sharing_strategy(usual)


@pytest.mark.parametrize("size", [10, LARGE])
def test_views_of_one_storage_are_still_that(world, size) -> None:
    whole = torch.zeros(size)
    assert world.run(alias, (whole, whole[-5:])) == [7.0, 7.0]
    both = world.run(give_back, (whole, whole[-5:]))[0]
    both[1].fill_(2.0)
    assert both[0][-1] == 2.0


def test_tensors_of_all_kinds_keep_what_they_are(world) -> None:
    large = torch.randn(LARGE // 2, 2, dtype=torch.complex64)
    sparse = torch.eye(3).to_sparse()
    sent = {
        "view": large.t()[:, 3:50],
        "conjugate": large.conj(),
        "bfloat16": torch.ones(LARGE, dtype=torch.bfloat16),
        "half": torch.ones(3, dtype=torch.uint16),
        "parameter": torch.nn.Parameter(torch.ones(LARGE)),
        "sparse": sparse,
        "scalar": torch.tensor(3),
        "linear": torch.nn.Linear(4, 4),
    }
    for back in world.run(give_back, sent):
        for name in ("view", "conjugate", "bfloat16", "half", "parameter", "scalar"):
            assert torch.equal(back[name], sent[name]), name
            assert back[name].dtype == sent[name].dtype
            assert back[name].stride() == sent[name].stride()
        assert back["conjugate"].is_conj()
        assert type(back["parameter"]) is torch.nn.Parameter and back["parameter"].requires_grad
        assert back["sparse"].is_sparse and torch.equal(back["sparse"].to_dense(), torch.eye(3))
        assert torch.equal(back["linear"].weight, sent["linear"].weight)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads /proc")
def test_reading_a_large_argument_copies_nothing(world) -> None:
    size = 1 << 24
    sent = torch.ones(size, dtype=torch.uint8)
    world.run(read_all, sent)  # what summing needs once
    for total, own in world.run(read_all, sent):
        assert total == size
        assert own < size / 4


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
def test_tensors_that_are_kept_keep_no_files_open(world) -> None:
    world.run(grow, LARGE)
    before = open_files(), world.run(open_files)
    kept = [world.run(grow, LARGE) for _ in range(50)]
    kept += [world.run(give_back, torch.ones(LARGE).share_memory_()) for _ in range(2)]
    del kept[-2:]
    assert open_files() == before[0] and world.run(open_files) == before[1]
    assert kept[0][1][0] == 1.0


def test_what_is_dropped_is_unmapped() -> None:
    mapped = Path("/proc/self/maps")
    with phalanx.World(ranks=1, **GLOO) as world:
        (result,) = world.run(grow, LARGE)
        assert mapped.read_text().count("/memfd:phalanx") == 1
        del result
        assert mapped.read_text().count("/memfd:phalanx") == 0


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="looks into /dev/shm")
def test_a_rank_that_dies_leaves_nothing_of_its_arguments() -> None:
    before = set(os.listdir("/dev/shm"))
    with pytest.raises(phalanx.RankFailedError, match="died with exit code 3"):
        phalanx.run(die_with, torch.zeros(LARGE), ranks=2, **GLOO)
    left = set(os.listdir("/dev/shm")) - before
    owners = {name: re.match(r"torch_(\d+)_", name) for name in left}  # of other tests
    assert [n for n, pid in owners.items() if not pid or not _is_alive(int(pid[1]))] == []


def _is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


class Interruption:
    """Opening it takes until another thread has opened a serialized of its own, too."""

    def __init__(self, turns: threading.Barrier) -> None:
        turns.wait(10)

    def __reduce__(self) -> Any:
        return Interruption, (), {}


def test_parcels_that_two_threads_open_at_once(monkeypatch) -> None:
    turns = threading.Barrier(2)
    monkeypatch.setattr(Interruption.__init__, "__defaults__", (turns,))
    numbers = (1.0, 2.0)
    sent = []
    for number in numbers:
        with monkeypatch.context() as patch:
            patch.setattr(Interruption, "__init__", lambda self: None)
            content = (Interruption(), torch.full((LARGE,), number), Interruption())
            sent.append(serialization.pack(content))
    found: dict[float, float] = {}

    def open_it(number: float, each: Any) -> None:
        found[number] = serialization.unpack_value(each)[1][0].item()

    threads = [
        threading.Thread(target=open_it, args=pair) for pair in zip(numbers, sent, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {1.0: 1.0, 2.0: 2.0}


def test_hundreds_of_files_go_with_one_message(world) -> None:
    sent = [torch.full((buffers.SMALL,), i % 251, dtype=torch.uint8) for i in range(200)]
    shared = [each.share_memory_() for each in sent]
    back = world.run(give_back, shared)[1]
    assert all(torch.equal(one, other) for one, other in zip(sent, back, strict=True))


def test_without_files_in_memory_tensors_go_by_value(monkeypatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    packed = serialization.pack(torch.arange(LARGE))
    assert packed.memories == () and len(packed.data) > LARGE
    assert torch.equal(serialization.unpack_value(packed), torch.arange(LARGE))


def test_a_sandbox_without_files_in_memory(monkeypatch) -> None:
    def forbidden(*args: Any) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", forbidden)
    packed = serialization.pack([torch.arange(LARGE), torch.ones(LARGE)])
    assert packed.memories == ()
    assert torch.equal(serialization.unpack_value(packed)[1], torch.ones(LARGE))


def test_arrays_of_numpy_go_the_same_way(world) -> None:
    numpy = pytest.importorskip("numpy")
    large = numpy.arange(LARGE)
    fixed = numpy.ones(LARGE)
    fixed.flags.writeable = False
    sent = [large, torch.ones(LARGE), fixed, large[::2], numpy.arange(3)]
    assert len(serialization.pack([large, fixed]).data) < buffers.SMALL
    for back in world.run(give_back, sent):
        assert [type(each) for each in back] == [type(each) for each in sent]
        assert all((one == other).all() for one, other in zip(sent, back, strict=True))
        back[0][0] = 7
    assert large[0] == 0


def test_a_file_that_is_full_is_followed_by_another(monkeypatch) -> None:
    monkeypatch.setattr(buffers, "CHUNK", buffers.SMALL)
    sent = [torch.full((LARGE,), number, dtype=torch.uint8) for number in range(3)]
    packed = serialization.pack(sent)
    assert [each.full for each in packed.memories] == [True] * 3
    for one, other in zip(sent, serialization.unpack_value(packed), strict=True):
        assert torch.equal(one, other)


def test_memory_that_cannot_be_mapped_is_an_error() -> None:
    with pytest.raises(OSError, match="cannot map 10 bytes"):
        buffers._map(-1, 10, 0)


# -- functions ----------------------------------------------------------------------------


def test_lambdas_and_closures_travel(world) -> None:
    factor = 10
    assert world.run(lambda: factor * dist.get_rank()) == [0, 10]

    def inner(x: int) -> int:
        return factor + x + len(GLOO)

    assert world.run(inner, 5) == [18, 18]
    assert world.run(give_back, inner)[0](5) == 18


def test_local_classes_travel_and_come_back_as_they_were(world) -> None:
    class Point:
        def __init__(self, x: int) -> None:
            self.x = x

        def right(self) -> Point:
            return Point(self.x + 1)

    for back in world.run(Point.right, Point(3)):
        assert type(back) is Point and back.x == 4


def test_an_exception_class_from_inside_a_function_keeps_its_name(world) -> None:
    with pytest.raises(phalanx.RankFailedError) as caught:
        world.run(raise_local)
    (error, _) = caught.value.failures.values()
    assert type(error).__name__ == "LocalError" and isinstance(error, ValueError)


def test_functions_of_a_module_go_by_name(world) -> None:
    assert b"cloudpickle" not in serialization.pack(give_back).data
    assert world.run(give_back, give_back) == [give_back, give_back]


def test_a_function_that_lost_its_name_goes_by_value(world, monkeypatch) -> None:
    original: Callable[..., Any] = give_back
    monkeypatch.setitem(globals(), "give_back", lambda thing: "another")
    assert world.run(original, 1) == [1, 1]


def test_functions_of_a_module_made_by_hand_travel(world, monkeypatch) -> None:
    made = ModuleType("made_by_hand")
    exec("def seven():\n    return 7", made.__dict__)
    monkeypatch.setitem(sys.modules, "made_by_hand", made)
    assert world.run(made.seven) == [7, 7]


def refusal(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(phalanx.UsageError) as caught:
        phalanx.run(*args, ranks=1, **GLOO, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (threading.Lock, "<unlocked _thread.lock object"),
        (Path(os.devnull).open, "a TextIOWrapper cannot be sent"),
        (lambda: (i for i in range(3)), "a generator cannot be sent"),
    ],
)
def test_what_cannot_travel_is_named(make, text) -> None:
    thing = make()
    try:
        said = refusal(give_back, thing)
        assert said.startswith(f"argument 1 of give_back: {text}")
        assert said.endswith("make it inside the function, or use engine='threads'")
        assert "argument 'thing' of give_back" in refusal(give_back, thing=[thing])
        # Also if only a nested function holds it.
        assert "cannot be sent to another process" in refusal(lambda: thing)
    finally:
        getattr(thing, "close", lambda: None)()


def test_without_cloudpickle_the_refusal_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    serialization._by_value.cache_clear()
    try:

        def inner() -> None:
            pass

        assert refusal(inner) == (
            "test_without_cloudpickle_the_refusal_says_what_to_install.<locals>.inner is "
            "defined inside a function and cannot be sent to another process; define it at "
            "the top level of a module, or use engine='threads', or install what sends it as "
            "it is: pip install cloudpickle"
        )
        assert refusal(lambda: 1).startswith("a lambda has no name and cannot be sent")
    finally:
        serialization._by_value.cache_clear()


# -- programs that are in no file ---------------------------------------------------------

TYPED = """
import phalanx, torch.distributed as dist
base = 40
class Answer:
    def __init__(self, value):
        self.value = value

def program(x):
    return Answer(base + x + dist.get_rank())

found = phalanx.run(program, 1, ranks=2, engine="processes", backend="gloo")
print([type(each) is Answer and each.value for each in found])
"""


@pytest.mark.slow
def test_a_program_from_standard_input() -> None:
    done = subprocess.run(
        [sys.executable, "-"], input=TYPED, capture_output=True, text=True, timeout=50
    )
    assert (done.stdout, done.stderr) == ("[41, 42]\n", "")


@pytest.mark.slow
def test_a_program_on_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TYPED], capture_output=True, text=True, timeout=50
    )
    assert (done.stdout, done.stderr) == ("[41, 42]\n", "")


@pytest.mark.slow
def test_an_interactive_session_at_a_terminal() -> None:
    ours, theirs = pty.openpty()
    shell = subprocess.Popen(
        [sys.executable, "-q"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "dumb", "PYTHON_BASIC_REPL": "1"},
    )
    os.close(theirs)
    try:
        os.write(ours, TYPED.lstrip("\n").encode() + b"exit()\n")
        shown, until = "", time.monotonic() + 50
        while shell.poll() is None and time.monotonic() < until:
            if select.select([ours], [], [], 0.2)[0]:
                with suppress(OSError):  # it has just ended
                    shown += os.read(ours, 4096).decode()
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)
    assert "\n[41, 42]\r\n" in shown


@pytest.mark.slow
def test_a_function_typed_after_a_script_was_run(tmp_path) -> None:
    script = tmp_path / "before.py"
    script.write_text("import phalanx\ndef double(x):\n    return 2 * x\n")
    typed = textwrap.dedent(
        """
        def quadruple(x):
            return double(double(x))

        print(phalanx.run(quadruple, 3, ranks=2, engine="processes"))
        """
    )
    done = subprocess.run(
        [sys.executable, "-i", "-q", str(script)],
        input=typed,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.stdout == "[12, 12]\n"


@pytest.mark.slow
def test_the_lines_of_a_notebook_are_in_the_report() -> None:
    cell = "def program():\n    raise ValueError('in a cell')\n"
    notebook = f"""
import linecache, phalanx
cell = {cell!r}
linecache.cache["<ipython-input-1>"] = (len(cell), None, cell.splitlines(True), "x")
exec(compile(cell, "<ipython-input-1>", "exec"))
try:
    phalanx.run(program, ranks=1, engine="processes")
except phalanx.RankFailedError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-"], input=notebook, capture_output=True, text=True, timeout=50
    )
    assert "<ipython-input-1>:2 in program" in done.stdout
    assert "raise ValueError('in a cell')" in done.stdout


def test_in_a_rank_the_program_has_another_name(monkeypatch, tmp_path) -> None:
    file = tmp_path / "program.py"
    file.write_text("def work(): pass")
    program = ModuleType("__mp_main__")
    program.__file__ = str(file)
    exec(compile(file.read_text(), file, "exec"), vars(program))
    for name in ("__main__", "__mp_main__"):
        monkeypatch.setitem(sys.modules, name, program)
    sent = serialization.pack(program.work)
    assert sent.modules == {"__main__": str(file)}
    assert sent.main == {"init_main_from_path": str(file)}


NESTED = """
import torch, torch.distributed as dist, phalanx

class Box:
    def __init__(self, value):
        self.value = value

def inner(box):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return Box(tensor.item() + box.value)

def outer():
    boxes = phalanx.run(inner, Box(1), ranks=2, engine="processes", backend="gloo")
    return [box.value for box in boxes]

if __name__ == "__main__":
    print(phalanx.run(outer, ranks=1, engine="processes", backend="gloo"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [["nested.py"], ["-m", "nested"]], ids=["file", "module"])
def test_ranks_of_a_rank(tmp_path, how) -> None:
    (tmp_path / "nested.py").write_text(NESTED)
    done = subprocess.run(
        [sys.executable, *how], capture_output=True, text=True, timeout=50, cwd=tmp_path
    )
    assert done.stdout == "[[3.0, 3.0]]\n", done.stderr


def test_torchs_launcher_is_for_scripts() -> None:
    with pytest.raises(
        phalanx.UsageError, match=r"phalanx run --engine torchrun -n 4 train\.py"
    ):
        phalanx.run(give_back, 1, ranks=2, engine="torchrun")


@pytest.mark.parametrize("names", [{}, {"__name__": "no_such_module"}])
def test_a_function_that_exec_has_made(world, names: dict[str, Any]) -> None:
    exec("def next_of(x): return x + 1", names)
    assert world.run(names["next_of"], 1) == [2, 2]


class Odd(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first}-{second}")
        self.first = first


def raise_group() -> None:
    kind: Any = builtins.ExceptionGroup  # type: ignore[attr-defined, unused-ignore]
    raise kind("outer", [Odd(1, 2), kind("inner", [Odd(3, 4)])])


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no groups")
def test_errors_in_a_group_keep_their_class(world) -> None:
    with pytest.raises(phalanx.RankFailedError) as caught:
        world.run(raise_group)
    group: Any = caught.value.__cause__
    first, inner = group.exceptions
    assert type(group).__name__ == "ExceptionGroup" and group.message == "outer"
    assert (type(first), first.first) == (Odd, 1)
    assert [str(each) for each in inner.exceptions] == ["3-4"]


@pytest.mark.parametrize("size", [10, LARGE])
def test_a_file_that_the_program_has_mapped(world, size: int, tmp_path: Path) -> None:
    file = tmp_path / "values"
    file.write_bytes(bytes(4 * size))
    for shared in (True, False):
        sent = torch.from_file(str(file), shared=shared, size=size)
        assert [back.sum() for back in world.run(give_back, sent)] == [0.0, 0.0]


def share_by_name() -> torch.Tensor:
    torch.multiprocessing.set_sharing_strategy("file_system")
    return torch.ones(LARGE).share_memory_()


def test_a_result_in_shared_memory_with_a_name() -> None:
    for back in phalanx.run(share_by_name, ranks=2, **GLOO):
        assert back.sum() == LARGE
