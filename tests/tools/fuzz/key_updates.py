# TLS key updates (RFC 8446, 4.6.3), which Python's ssl cannot send: OpenSSL is asked itself, through ctypes.
import _ssl
import ctypes
import ssl
from typing import Any, Final

SSL_OF: Final = 3 * ctypes.sizeof(ctypes.c_void_p)  # in PySSLSocket (_ssl.c): behind the object's head and its socket
NOT_REQUESTED: Final = 0  # the peer need not update its own key
REQUESTED: Final = 1  # the peer has to

_library: Final = ctypes.CDLL(_ssl.__file__)  # its symbols, and those of the libssl that it is linked to
_library.SSL_get_version.restype = ctypes.c_char_p


def key_updates(
    connection: ssl.SSLObject | ssl.SSLSocket, outgoing: ssl.MemoryBIO, count: int, kind: int = NOT_REQUESTED
) -> bytes:
    """*count* records with a key update each. *connection* is established, and *outgoing* is its BIO.

    An SSLSocket sends the records by itself.
    """
    inner: Any = connection._sslobj  # type: ignore[union-attr]
    handle = ctypes.c_void_p.from_address(id(inner) + SSL_OF)
    assert _library.SSL_get_version(handle) == b"TLSv1.3"
    for _ in range(count):
        assert 1 == _library.SSL_key_update(handle, kind)
        assert 1 == _library.SSL_do_handshake(handle)
    return outgoing.read()
