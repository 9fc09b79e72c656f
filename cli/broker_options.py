# What `weir bench`, `weir pub` and `weir sub` share: the options that name a broker.
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.options import UNREACHABLE, refuse

if TYPE_CHECKING:
    import ssl

    from cli.endpoint import Endpoint

LONGEST: Final = 65_535  # bytes of a string of MQTT

User = Annotated[str | None, typer.Option("--user", "--username", "-u", metavar="NAME", help="User name.")]
Password = Annotated[
    str | None,
    typer.Option("--password", "--pw", "-P", metavar="WORD", envvar="WEIR_PASSWORD", help="Password."),
]
Version = Annotated[str, typer.Option("--version", "-V", metavar="3.1|3.1.1|5", help="MQTT version.")]
Tls = Annotated[bool, typer.Option("--tls", help="Use TLS.")]
CaFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Use TLS and trust the certificate authorities in FILE instead of the system's."),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Use TLS and accept any certificate.")]


def endpoint_of(address: str, port: int | None, tls: bool, cafile: Path | None, insecure: bool) -> "Endpoint":
    """The broker that the options name. If it cannot be resolved or reached, the command ends.

    *address* is HOST, HOST:PORT or a URL; *port* overrides the port in it.
    """
    from cli.endpoint import BadAddress, Unreachable, find, read_address

    try:
        named = read_address(address, port, tls or cafile is not None or insecure)
        return find(named, _tls_of(cafile, insecure) if named.tls else None)
    except BadAddress as error:
        refuse(str(error))
    except Unreachable as error:
        refuse(str(error), UNREACHABLE)


def connect_string(option: str, text: str | None) -> str | None:
    """*text* if a CONNECT can hold it; otherwise the command ends."""
    if text is not None:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            refuse(f"{option} is not valid: it is not UTF-8.")
        if size > LONGEST:
            refuse(f"{option} is not valid: it has {size} bytes, and MQTT allows at most {LONGEST}.")
    return text


def level_of(version: str) -> int:
    """The protocol level of --version; an unknown version ends the command."""
    level = {"3.1": 3, "31": 3, "3.1.1": 4, "311": 4, "5": 5, "5.0": 5, "50": 5}.get(version.removeprefix("mqttv"))
    if level is None:
        refuse(f"--version {version} is not valid: it must be 3.1, 3.1.1 or 5.")
    return level


def _tls_of(cafile: Path | None, insecure: bool) -> "ssl.SSLContext":
    import ssl

    from cli.endpoint import tls_context

    try:
        return tls_context(cafile, insecure)
    except OSError as error:
        what = "it holds no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        refuse(f"cannot read --cafile {cafile}: {what}.")
