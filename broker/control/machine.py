# The resources that the machine grants a process.
import os
import resource
from functools import cache
from pathlib import Path

from broker.control.cgroup import cgroup_memory_limit


def raise_descriptor_limit() -> int:
    """Raise the limit of open descriptors to the hard limit, and return it. Child processes inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def memory_limit(configured: int = 0, root: Path = Path("/")) -> int:
    """Bytes that this node may use: the least of *configured* (node.memory; 0: as much as there is), the limits of its
    control groups (cgroup.py) and the machine's memory.

    *root*: where /proc and /sys are.
    """
    machine = int((root / "proc/meminfo").read_text().split("MemTotal:")[1].split()[0]) * 1024
    limit = cgroup_memory_limit(root)
    return min(machine, limit or machine, configured or machine)


def resident_bytes() -> int:
    """Resident memory of this process."""
    pages = int(os.pread(_statm(), 256, 0).split()[1])
    return pages * resource.getpagesize()


def memory_use(limit: int) -> float:
    """The share of *limit*, in bytes, that this process uses."""
    return resident_bytes() / limit


@cache
def _statm() -> int:
    """A descriptor that stays open, as the memory is read also when no descriptor is left."""
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
