# What a process costs, as Linux accounts it: CPU from schedstat (in ns; /proc/PID/stat counts ticks of 10 ms) and
# resident memory, both with all descendants. A broker may be more than one process.
from collections.abc import Callable
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    return _sum(pid, _scheduled_ns) / 1e9


def resident_kib(pid: int) -> int:
    return _sum(pid, resident_kib_of)


def resident_kib_of(process: int) -> int:
    """That of one process alone. OSError if it has ended."""
    return status_kib(process, "VmRSS:")


def family(pid: int) -> list[int]:
    """*pid* and its descendants. A process that ends meanwhile may be missing."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # it has ended
        parent = int(text.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def _scheduled_ns(pid: int) -> int:
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def peak_kib(pid: int) -> int:
    """Greatest resident memory of each process since `forget_peak()`: their sum, so an upper bound of that of all."""
    return _sum(pid, lambda process: status_kib(process, "VmHWM:"))


def forget_peak(pid: int) -> None:
    """Count the greatest resident memory from now on."""
    for process in family(pid):
        Path(f"/proc/{process}/clear_refs").write_text("5")


def _sum(pid: int, cost: Callable[[int], int]) -> int:
    """Of *pid* and its descendants. One that ends meanwhile counts nothing: Redis' child that rewrites its file."""
    total = cost(pid)
    for process in family(pid)[1:]:
        try:
            total += cost(process)
        except OSError:
            continue
    return total


def status_kib(pid: int, field: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    if field not in status:  # its parent has not waited for it yet
        raise ProcessLookupError(f"process {pid} has ended")
    return int(status.partition(field)[2].split()[0])
