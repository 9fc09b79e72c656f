# Who may read the dashboard.
#
# Each request must name an allowed host in its Host header: other web pages cannot read the dashboard through a browser
# (DNS rebinding). On loopback these are the loopback names, and nothing else is asked: users of the machine can read
# the same from the node. Beyond loopback a request also needs the token. It is given once, in a form, so that it is in
# no URL, history or log of a proxy; afterwards the browser has a cookie that is derived from the token and does not
# reveal it. There are no accounts: the dashboard changes nothing.
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import parse_qs

COOKIE: Final = "weir-dashboard"
SIGN_IN: Final = "/sign-in"
LEAST_TOKEN: Final = 16  # characters: a token that cannot be guessed over a network
LARGEST_FORM: Final = 4096  # bytes
HEADERS: Final = [(b"cache-control", b"no-store"), (b"referrer-policy", b"no-referrer"), (b"x-frame-options", b"DENY")]
FORM: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Weir: sign in</title>
<meta name="viewport" content="width=device-width">
<style>body { font: 1rem/1.5 system-ui, sans-serif; margin: 3rem auto; max-width: 24rem; padding: 0 1rem }
input, button { font: inherit; padding: .4rem }</style>
<h1>Weir</h1><p role="status">PROBLEM</p><form method="post" action="/sign-in">
<label>Token of the dashboard <input name="token" type="password" autocomplete="current-password" required autofocus>
</label> <button>Sign in</button></form></html>
"""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class Access:
    """ASGI middleware that accepts only requests to allowed hosts, and with a token only from browsers that gave it."""

    def __init__(self, inner: Any, hosts: Collection[str], token: str) -> None:
        """*hosts*: names or addresses, allowed in addition to those of loopback. *token* "": none is needed."""
        self._inner = inner
        self._hosts = frozenset(host.lower() for host in hosts)
        self._token = token.encode()
        self._cookie = hmac.new(self._token, b"weir dashboard", hashlib.sha256).hexdigest() if token else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._inner(scope, receive, send)
        elif not self._is_allowed(_host(scope)):
            await _refuse(scope, receive, send, 421, "This dashboard accepts requests to its own names only.\n")
        elif not self._cookie or hmac.compare_digest(_cookie(scope), self._cookie.encode()):
            await self._inner(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] == SIGN_IN and scope["method"] == "POST":
            await self._sign_in(receive, send)
        else:
            await _refuse(scope, receive, send, 401, FORM.replace("PROBLEM", ""))

    def _is_allowed(self, host: str) -> bool:
        return is_loopback(host) or host in self._hosts

    async def _sign_in(self, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            part = await receive()
            body += part.get("body", b"")
            if part["type"] != "http.request" or not part.get("more_body") or len(body) > LARGEST_FORM:
                break
        given = parse_qs(body[:LARGEST_FORM].decode("latin-1")).get("token", [""])[0].strip()
        if not hmac.compare_digest(given.encode(), self._token):
            await _answer(send, 403, FORM.replace("PROBLEM", "This is not the token of the dashboard."))
            return
        cookie = f"{COOKIE}={self._cookie}; Path=/; HttpOnly; SameSite=Strict"
        await _answer(send, 303, "", [(b"location", b"/"), (b"set-cookie", cookie.encode())])


def _host(scope: Scope) -> str:
    """Return the name in the Host header, without its port."""
    header = _header(scope, b"host").decode("latin-1").lower()
    return header.rpartition("]")[0].lstrip("[") if header.startswith("[") else header.partition(":")[0]


def _cookie(scope: Scope) -> bytes:
    """Return the value of our cookie; b"" if there is none."""
    for part in _header(scope, b"cookie").split(b";"):
        name, _, value = part.strip().partition(b"=")
        if name == COOKIE.encode():
            return value
    return b""


def _header(scope: Scope, wanted: bytes) -> bytes:
    return next((bytes(value) for name, value in scope["headers"] if name == wanted), b"")


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, text: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
    else:
        await _answer(send, status, text)


async def _answer(send: Send, status: int, text: str, more: Collection[tuple[bytes, bytes]] = ()) -> None:
    kind = b"text/html; charset=utf-8" if text.startswith("<") else b"text/plain"
    headers = [(b"content-type", kind), (b"content-length", str(len(text)).encode()), *HEADERS, *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
