# What the machine lets a process have.
import os
import resource
from functools import cache
from pathlib import Path
from typing import Final

CGROUP_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def raise_descriptor_limit() -> int:
    """Allow as many descriptors as the system lets us; how many. Processes that we start inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def memory_limit() -> int:
    """Bytes this process may use: its control group's limit, else the machine's memory."""
    machine = Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]
    limit = int(machine) * 1024
    for path in CGROUP_LIMITS:
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            limit = min(limit, int(text))
    return limit


def resident_bytes() -> int:
    """Resident memory of this process."""
    pages = int(os.pread(_statm(), 256, 0).split()[1])
    return pages * resource.getpagesize()


def memory_use(limit: int) -> float:
    """The share of *limit*, in bytes, that this process uses."""
    return resident_bytes() / limit


@cache
def _statm() -> int:
    """Open from the first look on, as we look also when no descriptor is left."""
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
