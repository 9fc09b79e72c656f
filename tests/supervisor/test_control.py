# Requests at the control socket: what is not right is named, and does nothing.
import json
import os
import pwd
import socket

import pytest
import trio

from supervisor.commands import Refused
from supervisor.control import asker, parse


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
        (b"[1]", "no JSON object"),
        (b'{"command": "stop"}', "version None"),
        (b'{"weir": 2, "command": "stop"}', "version 2"),
        (b'{"weir": true, "command": "stop"}', "version True"),
        (b'{"weir": 1}', "names no command"),
        (b'{"weir": 1, "command": ["stop"]}', "names no command"),
    ],
)
def test_what_is_no_request_is_refused_by_what_is_wrong(line: bytes, what: str) -> None:
    """A program that speaks to a node would have to guess what it did wrong, or stop a node by accident."""
    with pytest.raises(Refused, match=what) as refused:
        parse(line)

    assert 1 == len(str(refused.value).splitlines())
    json.dumps(str(refused.value))


async def test_who_asks_is_known_by_name_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log would not say who had slowed a client down; or a user without a name, or with an odd one, could not."""
    ours, theirs = (trio.SocketStream(trio.socket.from_stdlib_socket(one)) for one in socket.socketpair())
    async with ours, theirs:
        mine = pwd.getpwuid(os.getuid()).pw_name
        assert f"{mine} (uid {os.getuid()})" == asker(ours)

        def foreign(user: int) -> pwd.struct_passwd:
            return pwd.struct_passwd(["\udcff", "x", user, user, "", "/", "/bin/sh"])

        monkeypatch.setattr(pwd, "getpwuid", foreign)
        assert f"? (uid {os.getuid()})" == asker(ours)

        def nobody(user: int) -> object:
            raise KeyError(user)

        monkeypatch.setattr(pwd, "getpwuid", nobody)
        assert f"uid {os.getuid()}" == asker(ours)
