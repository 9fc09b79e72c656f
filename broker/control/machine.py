# The resources that the machine grants a process.
import os
import resource
from functools import cache
from pathlib import Path
from typing import Final

CGROUP_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def raise_descriptor_limit() -> int:
    """Raise the limit of open descriptors to the hard limit, and return it. Child processes inherit it."""
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
    """A descriptor that stays open, as the memory is read also when no descriptor is left."""
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
