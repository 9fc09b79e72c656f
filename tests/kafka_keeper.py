# Keeps one Kafka for all processes of a run of tests: python tests/kafka_keeper.py FOLDER
#
# A process of the run that needs Kafka holds a shared lock on FOLDER/users, and starts this one unless FOLDER/address
# is there (tests/kafka_servers.py). When the kernel has released all those locks, however the processes ended, this
# process ends the server.
import fcntl
import os
import runpy
import sys
from pathlib import Path

SERVER = Path(__file__).resolve().parent.parent / "deploy" / "kafka" / "server.py"


def main(folder: Path) -> None:
    server = runpy.run_path(str(SERVER))["KafkaServer"](folder)
    server.start()
    address = folder / "address"
    address.write_text(server.address)
    os.close(sys.stdout.fileno())  # who has started this process waits for that
    with (folder / "users").open() as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        address.unlink()  # before the next one gets its lock
        server.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
