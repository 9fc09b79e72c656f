# The memory limit of the control group that this process is in.
#
# A limit of an ancestor binds, too, so the least of all counts: systemd sets MemoryMax on a unit or on a slice, a
# container engine on the container. /proc/self/cgroup names the group in each hierarchy, and mountinfo says where the
# hierarchy is mounted and which group is at the mount point. In a container without a cgroup namespace the named group
# is outside of what is mounted; the group at the mount point is the container's then, and always among those read.
from collections.abc import Iterator
from pathlib import Path
from typing import Final

UNIFIED: Final = "cgroup2"  # type of the file system of version 2
LEGACY: Final = "cgroup"  # of version 1
LIMIT_FILES: Final = {UNIFIED: "memory.max", LEGACY: "memory.limit_in_bytes"}


def cgroup_memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that the control group of this process may use, or None if it has no limit. *root*: where /proc and /sys
    are.
    """
    limits = []
    for folder, name in _folders(root):
        try:
            text = (folder / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # "max": no limit. Version 1 has no word for it, but a number greater than any memory.
            limits.append(int(text))
    return min(limits, default=None)


def _folders(root: Path) -> Iterator[tuple[Path, str]]:
    """The folder of each group that may limit the memory, from that of the process up, and the name of the file."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    for mount in mounts:
        kind, top, point, memory = _mount(mount)
        if kind not in LIMIT_FILES or (kind == LEGACY and not memory):
            continue
        for line in groups:
            _, controllers, group = line.split(":", 2)
            if not controllers if kind == UNIFIED else "memory" in controllers.split(","):
                for folder in _up(root / point.lstrip("/"), group, top):
                    yield folder, LIMIT_FILES[kind]


def _mount(line: str) -> tuple[str, str, str, bool]:
    """Of a line of mountinfo: type, group at the mount point, mount point, and whether it has the memory controller."""
    before, _, after = line.partition(" - ")
    fields, described = before.split(), after.split()
    if len(fields) < 5 or not described:
        return "", "", "", False
    return described[0], fields[3], fields[4], "memory" in described[-1].split(",")


def _up(point: Path, group: str, top: str) -> Iterator[Path]:
    """The folders of *group* and of its ancestors, the last of them *point*, where the group *top* is mounted."""
    if top != "/" and (group + "/").startswith(top + "/"):
        group = group[len(top) :]
    parts = [part for part in group.split("/") if part and part != ".."]
    for count in range(len(parts), -1, -1):
        yield point.joinpath(*parts[:count])
