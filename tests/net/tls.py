# Clients that speak TLS to an in-process broker.
import socket
import ssl
from concurrent.futures import Executor, Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from broker.config.schema import Config, Tls
from broker.net.offload import Offload
from broker.net.transports.certificates import make_context
from broker.net.transports.handshakes import WAITING, Handshakes
from broker.net.transports.tls import TlsTransport
from tests.inprocess import Broker, Client


class Authority:
    """Somebody who signs certificates, and the files of a server's and of a client's."""

    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        self._folder = folder
        self.file = str(folder / "ca.pem")
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, name: str, *, common_name: str | None = None, expired: bool = False) -> tuple[str, str]:
        """(certificate file, key file)."""
        began, ends = (datetime(2020, 1, 1), datetime(2021, 1, 1)) if expired else (None, None)
        issued = self._ca.issue_cert(name, common_name=common_name, not_before=began, not_after=ends)
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(key)
        return str(certificate), str(key)

    def revoke(self, revoked: tuple[str, str]) -> str:
        """A file with the revocation list of this authority, on which the certificate of *revoked* is."""
        now = datetime.now(UTC)
        authority = x509.load_pem_x509_certificate(self._ca.cert_pem.bytes())
        key = serialization.load_pem_private_key(self._ca.private_key_pem.bytes(), None)
        serial = x509.load_pem_x509_certificate(Path(revoked[0]).read_bytes()).serial_number
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        builder = x509.CertificateRevocationListBuilder().issuer_name(authority.subject).add_revoked_certificate(entry)
        crl = builder.last_update(now).next_update(now + timedelta(days=1))
        signed = crl.sign(cast(EllipticCurvePrivateKey, key), hashes.SHA256())
        file = self._folder / "revoked.pem"
        file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return str(file)

    def server(self, **settings: Any) -> Tls:
        certificate, key = self.issue("localhost")
        return Tls(certificate=certificate, key=key, client_ca=self.file, **settings)

    def trusted_by(self, certificate: tuple[str, str] | None = None) -> ssl.SSLContext:
        """The context of a client that trusts this authority, and shows *certificate* if it is asked."""
        context = ssl.create_default_context(cafile=self.file)
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context


class Later(Executor):
    """Threads that have better to do: what is submitted is done when a test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[object], Any]] = []

    def submit(self, work, /, *args, **kwargs):  # type: ignore[no-untyped-def]  # as Executor's
        done: Future[object] = Future()
        self.waiting.append((done, work))
        return done

    def go(self) -> None:
        for done, work in self.waiting:
            try:
                done.set_result(work())
            except Exception as error:
                done.set_exception(error)
        self.waiting.clear()


class TlsSocket:
    """A socket as tests/inprocess.py uses one, with TLS on it; *raw* is the one below."""

    def __init__(self, raw: socket.socket, context: ssl.SSLContext) -> None:
        self.raw = raw
        self._unsent = b""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    def shake(self) -> bool:
        """One step of the handshake; whether it is done."""
        self._pull()
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self._push()
        return True

    def recv(self, size: int) -> bytes:
        if self._unsent:
            try:
                self._push()
            except BlockingIOError:
                pass
        while True:
            try:
                return self.tls.read(size)
            except ssl.SSLWantReadError:
                if not self._pull():
                    return b""

    def encrypt(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self._outgoing.read()

    def send(self, data: bytes) -> int:
        self._push()
        self._unsent = self.encrypt(data[:16384])
        try:
            self._push()
        except BlockingIOError:
            pass  # with the next call of anything
        return min(len(data), 16384)

    def close(self) -> None:
        self.raw.close()

    def _pull(self) -> bool:
        try:
            data = self.raw.recv(65536)
        except BlockingIOError:
            if self.tls.version() is None:
                return True
            raise
        self._incoming.write(data)
        return bool(data)

    def _push(self) -> None:
        self._unsent += self._outgoing.read()
        while self._unsent:
            self._unsent = self._unsent[self.raw.send(self._unsent) :]


def transport(broker: Broker, tls: Tls, threads: Executor | None = None, most: int = WAITING) -> TlsTransport:
    """What a TLS listener of *broker* would have."""
    offload = broker.offload if threads is None else Offload(threads, broker.reactor.call)
    return TlsTransport("tls", make_context(tls), broker.reactor, Handshakes(offload, most))


def shake(client: Client, context: ssl.SSLContext) -> TlsSocket:
    """Do the handshake with the broker that *client* is connected to, and have *client* speak through it."""
    sock = TlsSocket(client.socket, context)
    for _ in range(5):
        client.reading = False
        done = sock.shake()
        client.broker.settle()
        if done:
            client.socket = sock  # type: ignore[assignment]  # it has what Client uses
            client.reading = True
            return sock
    raise AssertionError("the handshake does not come to an end")


__all__ = ["Authority", "Config", "Later", "TlsSocket", "shake", "transport"]
