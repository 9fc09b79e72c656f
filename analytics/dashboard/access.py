# Who may read the dashboard, and who may change something with it.
#
# Each request must name an allowed host in its Host header: other web pages cannot read the dashboard through a browser
# (DNS rebinding). On loopback these are the loopback names, and nothing else is asked: users of the machine can read
# the same from the node. Beyond loopback a request also needs the token. It is given once, in a form, so that it is in
# no URL, history or log of a proxy; afterwards the browser has a cookie that is derived from the token and does not
# reveal it.
#
# There are no accounts, but two tokens. Whoever has that of operators may also read the messages that wait for a
# client, remove them, and end its session. Without that token nobody may, on loopback either: other users of the
# machine reach the dashboard, and it may do at the node what they may not. Everything that changes something comes over
# the WebSocket of a page that was made for an operator, whose id is in that page only: no other web page can send it.
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
OPERATOR: Final = "weir.operator"  # in the scope of a request: whether it comes from an operator
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

    def __init__(self, inner: Any, hosts: Collection[str], token: str, operator_token: str = "") -> None:
        """*hosts*: names or addresses, allowed in addition to those of loopback. *token* "": none is needed to read.

        *operator_token*: of those who may change something; "": nobody.
        """
        self._inner = inner
        self._hosts = frozenset(host.lower() for host in hosts)
        self._reads = _cookie_of(token)
        self._operates = _cookie_of(operator_token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._inner(scope, receive, send)
        elif not self._is_allowed(_host(scope)):
            await _refuse(scope, receive, send, 421, "This dashboard accepts requests to its own names only.\n")
        else:
            await self._answer_allowed(scope, receive, send)

    async def _answer_allowed(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = _cookie(scope)
        operates = _is(given, self._operates)
        reads = operates or not self._reads or _is(given, self._reads)
        signs_in = scope["type"] == "http" and scope["path"] == SIGN_IN and (self._reads or self._operates)
        if signs_in and scope["method"] == "POST":
            await self._sign_in(receive, send)
        elif signs_in and reads:
            await _answer(send, 200, FORM.replace("PROBLEM", ""))
        elif reads:
            scope[OPERATOR] = operates
            await self._inner(scope, receive, send)
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
        cookie = _cookie_of(given)
        if not _is(cookie.encode(), self._reads) and not _is(cookie.encode(), self._operates):
            await _answer(send, 403, FORM.replace("PROBLEM", "This is not the token of the dashboard."))
            return
        cookie = f"{COOKIE}={cookie}; Path=/; HttpOnly; SameSite=Strict"
        await _answer(send, 303, "", [(b"location", b"/"), (b"set-cookie", cookie.encode())])


def _cookie_of(token: str) -> str:
    """Return the value of the cookie that stands for *token*; "" for ""."""
    return hmac.new(token.encode(), b"weir dashboard", hashlib.sha256).hexdigest() if token else ""


def _is(given: bytes, cookie: str) -> bool:
    """Return whether *given* is *cookie*, which is none if it is ""."""
    return cookie != "" and hmac.compare_digest(given, cookie.encode())


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
