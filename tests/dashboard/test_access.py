# Who may read the dashboard, without a server: requests in, answers out.
import asyncio
from typing import Any

import pytest

from analytics.dashboard.access import COOKIE, OPERATOR, SIGN_IN, Access
from tests.cli.running import weir

TOKEN = "0123456789abcdef"
HERE = "weir.example:8088"


async def inner(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


def asked(
    host: str = HERE,
    path: str = "/",
    cookie: str = "",
    form: str = "",
    kind: str = "http",
    token: str = TOKEN,
    operator_token: str = "",
    answers: Any = inner,
) -> tuple[Any, dict[bytes, bytes], bytes]:
    """Status, headers and body of the answer to a request; *form*: it is a POST."""
    said: list[Any] = []
    headers = [(b"host", host.encode()), (b"cookie", cookie.encode())]
    scope = {"type": kind, "path": path, "method": "POST" if form else "GET", "headers": headers}

    async def receive() -> Any:
        return {"type": "http.request", "body": form.encode(), "more_body": False}

    async def send(message: Any) -> None:
        said.append(message)

    asyncio.run(Access(answers, ["Weir.example"], token, operator_token)(scope, receive, send))
    first: dict[str, Any] = said[0] if said else {"status": 0}
    return (
        first.get("status", first.get("code")),
        dict(first.get("headers", ())),
        said[1]["body"] if len(said) > 1 else b"",
    )


def test_a_browser_gives_the_token_once_and_not_in_a_url() -> None:
    """The names of all clients would be open to everybody in the network, or the token be in each history."""
    assert 401 == asked()[0]
    status, headers, _ = asked(path=SIGN_IN, form=f"token={TOKEN}")
    assert (303, b"/") == (status, headers[b"location"])
    cookie, *flags = headers[b"set-cookie"].decode().split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} == set(flags)
    assert TOKEN not in cookie

    assert 200 == asked(cookie=f"another=1; {cookie}")[0]


@pytest.mark.parametrize(
    "request_of",
    [
        {"path": f"/?token={TOKEN}"},
        {"path": SIGN_IN},
        {"cookie": f"{COOKIE}={TOKEN}"},
        {"cookie": f"{COOKIE}=é"},
        {"cookie": f"{COOKIE}="},
        {"path": SIGN_IN, "form": "token=0123456789abcdeF"},
        {"path": SIGN_IN, "form": "token=%ff%00"},
        {"path": SIGN_IN, "form": "x" * 100_000},
        {"path": "/", "form": f"token={TOKEN}"},
        {"kind": "websocket"},
    ],
)
def test_nothing_else_is_accepted(request_of: dict[str, str]) -> None:
    """Who guesses, or has an old cookie, would be let in."""
    status, headers, body = asked(**request_of)

    assert status in (401, 403, 1008)
    assert b"set-cookie" not in headers
    assert TOKEN.encode() not in body


def test_a_request_must_name_an_allowed_host() -> None:
    """A page of somebody else could have a browser read the dashboard (DNS rebinding)."""
    hosts = ("localhost", "127.0.0.1:8088", "[::1]:8088", "WEIR.example", "evil.example", "weir.example.evil", "")
    assert [200, 200, 200, 200, 421, 421, 421] == [asked(host, token="")[0] for host in hosts]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "--allowed-host NAME says at which name browsers reach it, and --token-file FILE which token"),
        (["--allowed-host", "weir.example"], "--token-file FILE which token they must give."),
        (["--token-file", "short"], "must have at least 16 letters and digits: `openssl rand -hex 16"),
        (["--token-file", "none"], "none: No such file or directory."),
    ],
)
def test_beyond_loopback_it_does_not_start_without_hosts_and_a_token(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    """It started, with a warning that nobody reads."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_text("secret\n")

    said = weir("dashboard", "--host", "0.0.0.0", "--folder", str(tmp_path), *arguments)

    assert (2, True) == (said.returncode, sentence in said.stderr), said.stderr


OPERATORS = "fedcba9876543210"


def test_only_the_token_of_operators_makes_an_operator() -> None:
    """Whoever may look, or is on the machine, could purge queues and end sessions."""
    seen: list[bool] = []

    async def note(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope[OPERATOR])

    def cookie_for(given: str, token: str) -> str:
        headers = asked(path=SIGN_IN, form=f"token={given}", token=token, operator_token=OPERATORS)[1]
        return headers[b"set-cookie"].decode().split("; ")[0]

    for token in ("", TOKEN):
        readers = ["", f"{COOKIE}={OPERATORS}"] if not token else [cookie_for(token, token)]
        for cookie in [*readers, cookie_for(OPERATORS, token)]:
            assert 0 == asked(cookie=cookie, token=token, operator_token=OPERATORS, answers=note)[0]
        assert 0 == asked(cookie=cookie, kind="websocket", token=token, operator_token=OPERATORS, answers=note)[0]
    assert [False, False, True, True, False, True, True] == seen


def test_without_a_token_of_operators_there_are_none() -> None:
    """An empty token would be one."""
    seen: list[bool] = []

    async def note(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope[OPERATOR])

    asked(cookie=f"{COOKIE}=", token="", answers=note)
    asked(path=SIGN_IN, form="token=", token="", answers=note)
    assert [False, False] == seen
    assert 403 == asked(path=SIGN_IN, form="token=", token="", operator_token=OPERATORS)[0]
    assert 200 == asked(path=SIGN_IN, token="", operator_token=OPERATORS)[0]
