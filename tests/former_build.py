# A build of Weir whose lanes between nodes have the format before this one's, for tests of rolling upgrades.
#
# It is made of the sources of this one, by taking out what the newest format has brought. Whoever raises LANE_FORMAT
# says here what that is: the build then sends none of it, and takes it for a mistake if it comes, as the former release
# would.
import re
import shutil
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("broker", "supervisor", "cli")
# Of files below SOURCES: patterns, each of which is there once, and what stands there in the former build.
CHANGES: Final = {
    "broker/cluster/lane_format.py": [(r"LANE_FORMAT: Final = 3\n", "LANE_FORMAT: Final = 2\n")],
    "broker/cluster/control_lane.py": [
        (r"        elif kind == wire\.HEAR_ALL:\n.*\n        elif kind == wire\.HEARD_ALL:\n.*\n", ""),
    ],
    "broker/cluster/all_heard.py": [(r"\[peer for peer in self\._peers\.all if not peer\.former\]", "[]")],
}


def make_former_build(folder: Path) -> Path:
    """Make it in *folder*, which must not be there; return the folder that Python imports it from."""
    for package in PACKAGES:
        shutil.copytree(SOURCES / package, folder / package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name, changes in CHANGES.items():
        path = folder / name
        text = path.read_text()
        for pattern, former in changes:
            text, count = re.subn(pattern, former, text)
            assert count == 1, f"{name} has {pattern!r} {count} times"
        path.write_text(text)
    return folder
