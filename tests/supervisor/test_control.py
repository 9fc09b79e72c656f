# Requests at the control socket: a wrong one is answered with what is wrong, and changes nothing.
import json
import os
import pwd
import socket

import pytest
import trio

from supervisor.control import user_of
from supervisor.request import Refused, parse


def test_a_request_is_a_command_and_its_arguments() -> None:
    """No command would reach a node."""
    assert ("kick", {"client": "me"}) == parse(b'{"weir": 1, "command": "kick", "client": "me"}')


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"stop", "not JSON"),
        (b"[" * 10_000, "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"command": "stop"}', "version None"),
        (b'{"weir": 2, "command": "stop"}', "version 2"),
        (b'{"weir": true, "command": "stop"}', "version True"),
        (b'{"weir": 1}', "names no command"),
        (b'{"weir": 1, "command": ["stop"]}', "names no command"),
    ],
)
def test_a_wrong_request_is_answered_with_what_is_wrong(line: bytes, what: str) -> None:
    """The author of a program would have to guess what is wrong, or stop a node by accident."""
    with pytest.raises(Refused, match=what) as refused:
        parse(line)

    assert 1 == len(str(refused.value).splitlines())
    json.dumps(str(refused.value))


async def test_the_user_is_known_by_name_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log would not name the user who changed a limit, or users without a name could send no request."""
    ours, theirs = (trio.SocketStream(trio.socket.from_stdlib_socket(one)) for one in socket.socketpair())
    async with ours, theirs:
        mine = pwd.getpwuid(os.getuid()).pw_name
        assert f"{mine} (uid {os.getuid()})" == user_of(ours)

        def foreign(user: int) -> pwd.struct_passwd:
            return pwd.struct_passwd(["\udcff", "x", user, user, "", "/", "/bin/sh"])

        monkeypatch.setattr(pwd, "getpwuid", foreign)
        assert f"? (uid {os.getuid()})" == user_of(ours)

        def nobody(user: int) -> object:
            raise KeyError(user)

        monkeypatch.setattr(pwd, "getpwuid", nobody)
        assert f"uid {os.getuid()}" == user_of(ours)
