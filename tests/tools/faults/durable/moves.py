# python -m tests.tools.faults.durable.moves FOLDER CLIENT: what workers did with a session, by the file of their Redis.
#
# The append-only file that a run has left has every command that was executed, of scripts those that they called.
# Those with a key of the client show who claimed the session, who had it, and what ended it.
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

LONGEST: Final = 60  # characters of a word that are shown
MOST_WORDS: Final = 8


def commands(data: bytes) -> Iterator[list[bytes]]:
    """The commands of an append-only file, until one is torn."""
    at = 0

    def line() -> bytes:
        nonlocal at
        begin, at = at, data.index(b"\r\n", at) + 2
        return data[begin : at - 2]

    try:
        while at < len(data):
            head = line()
            if head[:1] != b"*":  # "#TS:", a time
                continue
            words = []
            for _ in range(int(head[1:])):
                size = int(line()[1:])
                words.append(data[at : at + size])
                at += size + 2
            yield words
    except ValueError:
        return


def of_session(words: Sequence[bytes], client: bytes) -> bool:
    """Whether a command is about the session of *client*: by a key, or by an index or a fence with its name."""
    return any(word == client or word.endswith(b":" + client) for word in words)


def shown(words: Sequence[bytes]) -> str:
    told = [word[:LONGEST].decode("ascii", "backslashreplace") for word in words[:MOST_WORDS]]
    return " ".join([*told, *(["..."] if len(words) > MOST_WORDS else [])])


def main(words: Sequence[str]) -> int:
    if len(words) != 2:
        print("usage: python -m tests.tools.faults.durable.moves FOLDER CLIENT", file=sys.stderr)
        return 2
    folder, client = Path(words[0]), words[1].encode()
    for path in sorted(folder.glob("**/appendonlydir/*.incr.aof")):
        print(path)
        for number, command in enumerate(commands(path.read_bytes()), 1):
            if of_session(command, client):
                print(f"{number:8} {shown(command)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
