# A ClientHello of our own making, and what a server answers to it.
#
# Today's OpenSSL can no longer offer what a server must refuse (SSL 3.0, RC4, export ciphers), so that its own refusal
# would pass for the server's. Here the offer is bytes (RFC 5246, 7.4.1), and the answer is looked at, no further.
import secrets
import struct
from typing import Final, NamedTuple

from tests.system.addresses import Address

SSL_3_0: Final = 0x0300
TLS_1_0: Final = 0x0301
TLS_1_1: Final = 0x0302
TLS_1_2: Final = 0x0303

ALERT: Final = 21  # kinds of records
HANDSHAKE: Final = 22
SERVER_HELLO: Final = 2
HANDSHAKE_FAILURE: Final = 40  # alerts: no cipher in common
PROTOCOL_VERSION: Final = 70

GROUPS: Final = (0x001D, 0x0017, 0x0018)  # x25519, P-256, P-384
SIGNATURES: Final = (0x0804, 0x0403, 0x0401, 0x0201)  # RSA-PSS, ECDSA and RSA with SHA-256, RSA with SHA-1


class Answer(NamedTuple):
    """An alert, or what the server chose."""

    alert: int = 0
    version: int = 0
    cipher: int = 0
    compression: int = 0


def offer(address: Address, version: int, ciphers: list[int], compressions: bytes = b"\0") -> Answer:
    """Say hello with these, and read the first record of the answer."""
    with address.plain() as connection:
        connection.sendall(client_hello(version, ciphers, compressions))
        stream = connection.makefile("rb")
        kind, _, length = struct.unpack("!BHH", stream.read(5))
        body = stream.read(length)
        stream.close()
    if kind == ALERT:
        return Answer(alert=body[1])
    assert (HANDSHAKE, SERVER_HELLO) == (kind, body[0]), body
    (chosen,) = struct.unpack_from("!H", body, 4)
    session = body[38]  # the length of the session's id, behind the version and 32 random bytes
    cipher, compression = struct.unpack_from("!HB", body, 39 + session)
    return Answer(0, chosen, cipher, compression)


def client_hello(version: int, ciphers: list[int], compressions: bytes) -> bytes:
    body = struct.pack("!H", version) + secrets.token_bytes(32) + b"\0"
    body += sized("!H", numbers(ciphers)) + sized("!B", compressions)
    if version > SSL_3_0:  # which knows no extensions
        body += sized("!H", extensions())
    handshake = b"\1" + struct.pack("!I", len(body))[1:] + body
    return struct.pack("!BHH", HANDSHAKE, min(version, TLS_1_0), len(handshake)) + handshake


def extensions() -> bytes:
    """Those without which a good server would have to refuse a good cipher, too."""
    said = {
        10: sized("!H", numbers(GROUPS)),
        11: sized("!B", b"\0"),  # points uncompressed
        13: sized("!H", numbers(SIGNATURES)),
        0xFF01: sized("!B", b""),  # secure renegotiation (RFC 5746)
    }
    return b"".join(struct.pack("!H", number) + sized("!H", body) for number, body in said.items())


def numbers(values: list[int] | tuple[int, ...]) -> bytes:
    return struct.pack(f"!{len(values)}H", *values)


def sized(format: str, data: bytes) -> bytes:
    return struct.pack(format, len(data)) + data
