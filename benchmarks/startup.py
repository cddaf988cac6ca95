"""What `phalanx run -n 4 hello.py` costs beside what torch alone costs to import.

    python benchmarks/startup.py [--rounds 20] [--json FILE]

Both are started in turns as processes of their own, because machines are shared and noisy, and
the first round, which writes byte code, does not count. Three figures are taken for each:
the least and the median time by the clock, and the least CPU time (user and system), which
depends less on what else the machine does. The line "more" is the difference.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HELLO = """\
import torch.distributed as dist

dist.init_process_group("gloo")
print("hello from", dist.get_rank())
"""


def measure(command: list[str]) -> tuple[float, float]:
    """Seconds by the clock and of the CPU, for the process and what it starts."""
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    process = subprocess.Popen(
        command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    taken = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")
    return taken, used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "hello.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(HELLO)
        commands = {
            "import torch.distributed": ["-c", "import torch.distributed"],
            "phalanx run -n 4 hello.py": ["-m", "phalanx", "run", "-n", "4", script],
        }
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for number in range(arguments.rounds + 1):
            for name, command in commands.items():
                figures = measure([sys.executable, *command])
                if number:
                    taken[name].append(figures)
    rows = {name: summary(figures) for name, figures in taken.items()}
    torch, ours = rows.values()
    rows["more"] = {figure: ours[figure] - torch[figure] for figure in torch}
    print(f"{'seconds':28}{'least':>9}{'median':>9}{'CPU':>9}")
    for name, row in rows.items():
        print(f"{name:28}" + "".join(f"{value:9.3f}" for value in row.values()))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


def summary(figures: list[tuple[float, float]]) -> dict[str, float]:
    clock = [wall for wall, _ in figures]
    return {
        "least": min(clock),
        "median": statistics.median(clock),
        "cpu": min(cpu for _, cpu in figures),
    }


if __name__ == "__main__":
    main()
