# The format of a request at the control socket. The CLI imports this module and none that makes a node.
import json
from typing import Any, Final

VERSION: Final = 1  # of the request format


class Refused(Exception):
    """The request is refused, and nothing was changed. The text is one sentence."""


class NotFound(Refused):
    """The request names something that does not exist: the command ends with exit code 1."""


def encode(command: str, arguments: dict[str, object]) -> bytes:
    """A request: a JSON line."""
    return json.dumps({"weir": VERSION, "command": command, **arguments}).encode() + b"\n"


def parse(line: bytes) -> tuple[str, dict[str, Any]]:
    """The command and the arguments of a request. Refused."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refused(f"The request is not JSON: {error}.") from None
    if not isinstance(found, dict):
        raise Refused("The request is not a JSON object.")
    version = found.pop("weir", None)
    if type(version) is not int or version != VERSION:
        raise Refused(f"The request has version {version!r}, and this node accepts version {VERSION}.")
    command = found.pop("command", None)
    if not isinstance(command, str):
        raise Refused("The request names no command.")
    return command, found
