# TLS from outside: what is accepted and what refused, who may come in, and certificates that change.
import os
import signal
import ssl
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, Connect
from tests.system.addresses import Address, Transport
from tests.system.certificates import Authority, Certificate
from tests.system.hello import HANDSHAKE_FAILURE, PROTOCOL_VERSION, SSL_3_0, TLS_1_0, TLS_1_1, TLS_1_2, Answer, offer
from tests.system.processes import HOST, PATIENCE, WORKERS, BrokerProcess, free_port, packages, refused_start
from tests.system.raw import RawClient

pytestmark = pytest.mark.weir_only("its defaults allow more, and its files are read once")

StartTls = Callable[..., tuple[BrokerProcess, Address]]
Dial = Callable[..., RawClient]

ECDHE_RSA_AES128_GCM = 0xC02F

GOOD = {"AES-128-GCM": ECDHE_RSA_AES128_GCM, "AES-256-GCM": 0xC030, "ChaCha20": 0xCCA8}
WEAK = {
    "NULL": [0x0001, 0x0002, 0x003B, 0xC010],
    "export": [0x0003, 0x0006, 0x0008, 0x0014],
    "anonymous": [0x0018, 0x0034, 0x00A6, 0xC018],
    "RC4": [0x0004, 0x0005, 0xC011],
    "3DES": [0x000A, 0x0016, 0xC012],
    "CBC": [0x0033, 0x0067, 0xC013, 0xC014, 0xC027, 0xC028],
    "static RSA": [0x002F, 0x0035, 0x003C, 0x003D, 0x009C, 0x009D],
}
OLD = {"SSL 3.0": SSL_3_0, "TLS 1.0": TLS_1_0, "TLS 1.1": TLS_1_1}


@pytest.fixture
def address(broker: BrokerProcess, addresses: dict[Transport, Address]) -> Address:
    return addresses["tls"]


@pytest.fixture
def start_tls(start_weir: Callable[..., BrokerProcess], authority: Authority, certificate: Certificate) -> StartTls:
    """Starts one more Weir, with a TLS listener and these settings of [tls] or others."""

    def start(settings: dict[str, object]) -> tuple[BrokerProcess, Address]:
        address = Address("tls", free_port(), authority.path)
        needed: dict[str, object] = {
            "listeners.tls.enabled": "true",
            "listeners.tls.port": address.port,
            "tls.certificate": certificate.chain,
            "tls.key": certificate.key,
        }
        return start_weir(needed | settings), address

    return start


def connect(address: Address, client_id: str, context: ssl.SSLContext | None = None) -> RawClient:
    """A client that has its CONNACK."""
    client = RawClient(address.port, connection=address.open(context))
    client.connect(client_id)
    return client


def certificate_shown(address: Address) -> bytes:
    """To a new connection."""
    with address.open() as connection:
        assert isinstance(connection, ssl.SSLSocket)
        shown = connection.getpeercert(binary_form=True)
    assert shown is not None
    return shown


# --- what is spoken


@pytest.mark.parametrize("cipher", GOOD)
def test_forward_secret_aead_ciphers_are_accepted(address: Address, cipher: str) -> None:
    """A client of TLS 1.2 could not come in; and the refusals below would prove nothing."""
    assert Answer(0, TLS_1_2, GOOD[cipher]) == offer(address, TLS_1_2, [GOOD[cipher]])


@pytest.mark.parametrize("kind", WEAK)
def test_weak_ciphers_are_refused(address: Address, kind: str) -> None:
    """Who listens could decrypt what was said, now or once the key is stolen."""
    assert Answer(HANDSHAKE_FAILURE) == offer(address, TLS_1_2, WEAK[kind])


@pytest.mark.parametrize("version", OLD)
def test_old_versions_are_refused(address: Address, version: str) -> None:
    """Protocols with known attacks would be spoken (RFC 7568, RFC 8996)."""
    everything = [*GOOD.values(), *(cipher for weak in WEAK.values() for cipher in weak)]

    # OpenSSL says of the oldest that nothing fits, not that it is old.
    expected = HANDSHAKE_FAILURE if OLD[version] == SSL_3_0 else PROTOCOL_VERSION
    assert Answer(expected) == offer(address, OLD[version], everything)


def test_nothing_is_compressed(address: Address) -> None:
    """The length of a record would tell of its content (CRIME)."""
    assert 0 == offer(address, TLS_1_2, [ECDHE_RSA_AES128_GCM], compressions=b"\1\0").compression


def s_client(address: Address, *options: str, say: bytes = b"") -> str:
    """What `openssl s_client` prints, of the handshake and after it."""
    command = ["openssl", "s_client", "-connect", f"{HOST}:{address.port}", "-CAfile", str(address.authority), *options]
    done = subprocess.run(command, input=say, capture_output=True, timeout=PATIENCE)
    return (done.stdout + done.stderr).decode(errors="replace")


@pytest.mark.parametrize("option, version", [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")])
def test_openssl_accepts_us(address: Address, option: str, version: str) -> None:
    """A version that clients use, or our chain of certificates, would not be understood by other people's code."""
    said = s_client(address, "-brief", option)

    assert f"Protocol version: {version}" in said
    assert "Verification: OK" in said


def test_a_client_cannot_renegotiate(start_tls: StartTls) -> None:
    """One connection could make us pay for handshakes without end, or would wait for our answer without end."""
    _, address = start_tls({"limits.connect_timeout": "1h"})

    said = s_client(address, "-tls1_2", say=b"R\n")

    assert "RENEGOTIATING" in said and "no renegotiation" in said, said


def test_only_1_3_if_so_configured(start_tls: StartTls) -> None:
    """`tls.minimum` would be ignored."""
    _, address = start_tls({"tls.minimum": "1.3"})

    assert Answer(PROTOCOL_VERSION) == offer(address, TLS_1_2, list(GOOD.values()))
    assert "Protocol version: TLSv1.3" in s_client(address, "-brief")


# --- who comes in


def may_come(address: Address, client_id: str, certificate: Certificate | None) -> bool:
    """Whether a client that shows this certificate gets a CONNACK."""
    context = address.context()
    assert context is not None
    if certificate is not None:
        context.load_cert_chain(certificate.chain, certificate.key)
    try:
        with closing(address.open(context)) as connection:
            RawClient(address.port, connection=connection).connect(client_id)
    except (ssl.SSLError, ConnectionError):  # on TLS 1.3 the refusal comes after our side is done
        return False
    return True


@pytest.mark.parametrize(
    "wanted, without, of_another", [("none", True, True), ("optional", True, False), ("required", False, False)]
)
def test_client_certificates(
    start_tls: StartTls, tmp_path: Path, name: str, wanted: str, without: bool, of_another: bool
) -> None:
    """A certificate that we did not ask for would be needed, or one that anybody can sign would open the door."""
    ours, another = Authority(tmp_path, "ours"), Authority(tmp_path, "another")
    _, address = start_tls({"tls.client_certificate": wanted, "tls.client_ca": ours.path})

    come = [may_come(address, name, shown) for shown in (ours.client("friend"), None, another.client("stranger"))]

    assert [True, without, of_another] == come


# --- what is no TLS


def test_plain_text_on_the_tls_port_ends_with_one_line(start_tls: StartTls, name: str) -> None:
    """A client with the wrong port would hang, or fill the log, or harm others."""
    weir, address = start_tls({})
    with address.plain() as wrong:
        said_by = f"{HOST}:{wrong.getsockname()[1]}"
        wrong.sendall(encode(Connect(V5, name), V5))

        while wrong.recv(4096):
            pass  # an alert, in TLS's own words

    (line,) = weir.wait_for_log(f'"{said_by}"')
    assert "tls_handshake_failed" in line
    connect(address, f"{name}-right").disconnect()


def test_tls_on_the_plain_port_ends_with_one_line(
    start_weir: Callable[..., BrokerProcess], addresses: dict[Transport, Address], dial: Dial, name: str
) -> None:
    """The same mistake the other way round."""
    weir = start_weir({})
    address = addresses["tcp"]._replace(port=weir.port)
    with address.plain() as wrong:
        said_by = f"{HOST}:{wrong.getsockname()[1]}"
        context = ssl.create_default_context(cafile=address.authority)

        with pytest.raises((ssl.SSLError, ConnectionError)):
            context.wrap_socket(wrong, server_hostname=HOST)

    (line,) = weir.wait_for_log(f'"{said_by}"')
    assert "client_closed" in line
    dial(port=weir.port).connect(name)


@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"])
def test_a_handshake_that_stalls_ends_at_the_connect_deadline(start_tls: StartTls, begun: bytes) -> None:
    """Clients that never finish a handshake would hold their descriptors for ever."""
    weir, address = start_tls({"limits.connect_timeout": "300ms"})
    stalled = RawClient(address.port)
    stalled.socket.sendall(begun)

    assert 0.2 < stalled.seconds_until_end()

    stalled.close()
    weir.wait_for_log("connect_timeout")


# --- certificates that change


def replace(certificate: Certificate, successor: Certificate) -> None:
    os.replace(successor.chain, certificate.chain)
    os.replace(successor.key, certificate.key)


@pytest.fixture
def changing(tmp_path: Path, authority: Authority) -> tuple[Certificate, Certificate]:
    """A certificate to begin with, and another to replace it."""
    folder = Authority(tmp_path)  # signs nothing that is used here but names the files
    first = folder.server("first")
    replace(first, authority.server("replaced-first"))
    return first, authority.server("successor")


def test_a_certificate_is_replaced_without_ending_connections(
    start_tls: StartTls, changing: tuple[Certificate, Certificate], name: str
) -> None:
    """Each renewal of a certificate would cost all connections, or not take place."""
    certificate, successor = changing
    weir, address = start_tls({"tls.certificate": certificate.chain, "tls.key": certificate.key})
    before = certificate_shown(address)
    client = connect(address, name)

    replace(certificate, successor)
    weir.process.send_signal(signal.SIGHUP)
    weir.wait_for_log('"reloaded"', WORKERS - 1)  # each worker says so

    assert before != certificate_shown(address)
    client.ping()
    client.close()


def test_a_broken_replacement_is_not_taken(
    start_tls: StartTls, changing: tuple[Certificate, Certificate], name: str
) -> None:
    """A mistake in a renewal would take the listener down, or go unnoticed."""
    certificate, successor = changing
    weir, address = start_tls({"tls.certificate": certificate.chain, "tls.key": certificate.key})
    before = certificate_shown(address)

    os.replace(successor.chain, certificate.chain)  # and its key is forgotten
    weir.process.send_signal(signal.SIGHUP)
    line, *_ = weir.wait_for_log('"reload_failed"')  # of each worker

    assert '"error"' in line and str(certificate.key) in line
    assert before == certificate_shown(address)


# --- certificates that cannot be used


@pytest.mark.parametrize("setting", ["tls.certificate", "tls.key", "tls.client_ca"])
@pytest.mark.parametrize("content", [None, b"no certificate at all \xff\n"])
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, certificate: Certificate, setting: str, content: bytes | None
) -> None:
    """A mistake in a path would be a traceback, or a broker without TLS."""
    wrong = tmp_path / "wrong.pem"
    if content is not None:
        wrong.write_bytes(content)

    sentence = refused_with(tmp_path, certificate, {setting: wrong})

    assert setting in sentence and str(wrong) in sentence


@pytest.mark.parametrize("kind", ["server", "client"])
def test_a_key_that_does_not_fit_is_named(tmp_path: Path, certificate: Certificate, kind: str) -> None:
    """A key of another certificate, of the same kind (RSA) or of another, would be found by the first client."""
    stranger = Authority(tmp_path)
    other = (stranger.server() if kind == "server" else stranger.client("client")).key

    sentence = refused_with(tmp_path, certificate, {"tls.key": other})

    assert "tls.key" in sentence and str(other) in sentence


def test_an_encrypted_key_is_refused(tmp_path: Path, certificate: Certificate) -> None:
    """The start would wait for a password that nobody types."""
    encrypted = tmp_path / "encrypted.key"
    command = ["openssl", "rsa", "-aes128", "-passout", "pass:secret", "-in", str(certificate.key)]
    subprocess.run([*command, "-out", str(encrypted)], check=True, capture_output=True, timeout=PATIENCE)

    sentence = refused_with(tmp_path, certificate, {"tls.key": encrypted})

    assert str(encrypted) in sentence and "encrypted" in sentence


def refused_with(folder: Path, certificate: Certificate, settings: dict[str, object]) -> str:
    """The one sentence that `weir start` refuses these settings of [tls] with."""
    needed: dict[str, object] = {
        "listeners.tls.enabled": "true",
        "listeners.tls.port": free_port(),
        "tls.certificate": certificate.chain,
        "tls.key": certificate.key,
        "tls.client_certificate": "optional",
        "tls.client_ca": certificate.chain,
    }
    sentence = refused_start(free_port(), folder, needed | settings, packages())
    assert 1 == len(sentence.splitlines()), sentence
    return sentence
