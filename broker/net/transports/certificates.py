# Makes the TLS context from the certificate files, with modern defaults and no further choices.
#
# TLS 1.2 with forward secrecy and AEAD ciphers only, or 1.3: what Mozilla's "intermediate" names, without the ciphers
# that only clients from before 2014 need.
import ssl
from pathlib import Path
from typing import Final

from broker.config.schema import Tls

CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20:!aNULL:!SHA1"  # of TLS 1.2; those of 1.3 are all good
MINIMUM: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
CLIENT_CERTIFICATE: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
# OpenSSL's reasons for a key of the right kind that belongs to another certificate, and for a key of another kind.
KEY_MISMATCH: Final = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")


class CertificateError(Exception):
    """The certificates cannot be used. The text is one sentence: which setting, which file, why."""


def make_context(tls: Tls) -> ssl.SSLContext:
    """Make the context for new connections. CertificateError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = MINIMUM[tls.minimum]
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.verify_mode = CLIENT_CERTIFICATE[tls.client_certificate]
    _check_readable("tls.certificate", tls.certificate)
    _check_readable("tls.key", tls.key)
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except _Encrypted:
        raise CertificateError(f"tls.key: the key in {tls.key} is encrypted. Use a key without a password.") from None
    except ssl.SSLError as error:
        raise CertificateError(_pair_error(tls, error)) from None
    if tls.client_ca:
        _check_readable("tls.client_ca", tls.client_ca)
        try:
            context.load_verify_locations(tls.client_ca)
        except ssl.SSLError:
            raise CertificateError(f"tls.client_ca: {tls.client_ca} holds no PEM certificates.") from None
    if tls.client_crl:
        _check_readable("tls.client_crl", tls.client_crl)
        try:
            context.load_verify_locations(tls.client_crl)
        except ssl.SSLError:
            raise CertificateError(f"tls.client_crl: {tls.client_crl} holds no PEM revocation lists.") from None
        if not context.cert_store_stats()["crl"]:
            raise CertificateError(f"tls.client_crl: {tls.client_crl} holds no PEM revocation lists.")
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    return context


class _Encrypted(Exception):
    pass


def _no_password() -> bytes:
    raise _Encrypted


def _check_readable(key: str, file: str) -> None:
    try:
        Path(file).read_bytes()
    except OSError as error:
        raise CertificateError(f"{key}: cannot read {file}: {error.strerror}.") from None


def _pair_error(tls: Tls, error: ssl.SSLError) -> str:
    """Say what is wrong with the certificate or its key, as OpenSSL's own message does not name the file."""
    if error.reason in KEY_MISMATCH:
        return f"tls.key: the key in {tls.key} does not belong to the certificate in {tls.certificate}."
    if "BEGIN CERTIFICATE" not in Path(tls.certificate).read_text(errors="replace"):
        return f"tls.certificate: {tls.certificate} holds no PEM certificate."
    if "PRIVATE KEY" not in Path(tls.key).read_text(errors="replace"):
        return f"tls.key: {tls.key} holds no PEM private key."
    return f"tls.certificate: {tls.certificate} with {tls.key} cannot be used: {error.reason or error}."
