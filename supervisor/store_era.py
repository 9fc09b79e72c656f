# The era of the data of the embedded Redis: a new one begins when a loss of power may have taken back something that
# was acknowledged.
#
# With `store.durability = "process"` a loss of power costs about a second, and what is left is a state of the past:
# queues may know of publishes that the session of their publisher does not know of any more. Who reads a session of a
# former era believes nothing of it that has to be the latest (broker/store/durable/tokens.py). kill -9 takes nothing
# back, so not each start is a new era, only the first one after the machine itself was started, as the boot id of the
# kernel tells; and none if the server ended as it should before, or kept what it answered even without power.
#
# Data that was moved here without this file, such as that of a restored backup, is of another era, too.
import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import Any, Final

from supervisor.aof_sync import sync_folder

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
FILE: Final = "era"
SIZE: Final = 4  # bytes


class StoreEra:
    def __init__(self, folder: Path, loses: bool) -> None:
        """Begin a run of the server in *folder*. *loses*: without power it may lose what it has answered. OSError."""
        self._path = folder / FILE
        self._boot = BOOT_ID.read_text().strip()
        self._loses = loses
        former = self._read()
        undone = former.get("loses", True) and former.get("boot") != self._boot
        self.name: Final[str] = secrets.token_hex(SIZE) if undone else str(former["era"])
        self._write(loses)

    def end(self) -> None:
        """The server has ended, and all that it has answered is on the disk."""
        if self._loses:
            with contextlib.suppress(OSError):  # a full disk: then QoS 2 may come twice after a loss of power
                self._write(False)

    def _read(self) -> dict[str, Any]:
        """What is known of the former run; nothing of a file that is missing or damaged."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(self._path.read_bytes())
            if len(bytes.fromhex(found["era"])) == SIZE:
                return dict(found)
        return {}

    def _write(self, loses: bool) -> None:
        temporary = self._path.with_name(f"{FILE}.new")
        temporary.unlink(missing_ok=True)  # of a start that was killed
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w") as new:
            json.dump({"era": self.name, "boot": self._boot, "loses": loses}, new)
            new.flush()
            os.fsync(descriptor)
        os.replace(temporary, self._path)
        sync_folder(self._path.parent)
