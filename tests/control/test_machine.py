# The memory that a process may use, with /proc and /sys in a folder of the test.
from pathlib import Path

import pytest

from broker.control.machine import memory_limit

MIB = 1024 * 1024
MACHINE = 8192 * MIB
UNIFIED = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
LEGACY = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"


def machine(root: Path, groups: str, mounts: str, limits: dict[str, object]) -> Path:
    """A machine of 8 GiB whose *limits* are files below /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal:       {MACHINE // 1024} kB\nMemFree: 1 kB\n")
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/self/mountinfo").write_text("22 27 0:21 / /proc rw - proc proc rw\n" + mounts)
    for name, limit in limits.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{limit}\n")
    return root


@pytest.mark.parametrize(
    ("groups", "mounts", "limits"),
    [
        pytest.param(
            "0::/system.slice/weir.service\n",
            UNIFIED,
            {"system.slice/weir.service/memory.max": 512 * MIB, "system.slice/memory.max": "max"},
            id="MemoryMax of the unit",
        ),
        pytest.param(
            "0::/iot.slice/weir.service\n",
            UNIFIED,
            {"iot.slice/weir.service/memory.max": 1024 * MIB, "iot.slice/memory.max": 512 * MIB},
            id="MemoryMax of its slice, which is lower",
        ),
        pytest.param(
            "4:memory:/weir\n0::/\n",
            LEGACY,
            {"memory/memory.limit_in_bytes": 1 << 62, "memory/weir/memory.limit_in_bytes": 512 * MIB},
            id="cgroup version 1",
        ),
        pytest.param(
            "0::/../../docker/4711\n", UNIFIED, {"memory.max": 512 * MIB}, id="a container with a cgroup namespace"
        ),
        pytest.param(
            "4:memory:/docker/4711\n",
            LEGACY.replace(" / ", " /docker/4711 "),
            {"memory/memory.limit_in_bytes": 512 * MIB},
            id="a container without a cgroup namespace",
        ),
    ],
)
def test_the_least_limit_of_all_control_groups_binds(
    tmp_path: Path, groups: str, mounts: str, limits: dict[str, object]
) -> None:
    """The kernel would kill a worker that is within its own budget."""
    assert 512 * MIB == memory_limit(root=machine(tmp_path, groups, mounts, limits))


def test_without_a_limit_the_memory_of_the_machine_counts(tmp_path: Path) -> None:
    """A node outside of a container would not start."""
    root = machine(tmp_path, "0::/user.slice\n", UNIFIED, {"user.slice/memory.max": "max"})
    assert MACHINE == memory_limit(root=root)


def test_a_machine_without_control_groups_has_its_memory(tmp_path: Path) -> None:
    """A node would not start where no cgroup file system is mounted."""
    root = machine(tmp_path, "", "", {})
    (root / "proc/self/cgroup").unlink()
    assert MACHINE == memory_limit(root=root)


@pytest.mark.parametrize(("configured", "limit"), [(256 * MIB, 256 * MIB), (512 * MIB, 512 * MIB), (0, 512 * MIB)])
def test_a_configured_limit_binds_if_it_is_lower(tmp_path: Path, configured: int, limit: int) -> None:
    """A node beside other programs would take the memory of all, or count on memory that is not there."""
    root = machine(tmp_path, "0::/weir\n", UNIFIED, {"weir/memory.max": 512 * MIB})
    assert limit == memory_limit(configured, root)
    assert 512 * MIB == memory_limit(1024 * MIB, root)
