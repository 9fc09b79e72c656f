# Certificates for tests: an authority of the test's own, and what it signs, as files.
#
# RSA, although elliptic curves are made faster: only with an RSA certificate can a server agree to the ciphers
# without forward secrecy, so only then does it mean anything that it refuses them.
from pathlib import Path
from typing import NamedTuple

import trustme

from tests.system.processes import HOST


class Certificate(NamedTuple):
    chain: Path
    key: Path


class Authority:
    """Signs certificates into *folder*; `path` is its own certificate."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._ca = trustme.CA()
        self._folder = folder
        self.path = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(str(self.path))

    def server(self, name: str = "server") -> Certificate:
        """A certificate for the loopback addresses."""
        return self._write(name, self._ca.issue_cert(HOST, "::1", "localhost", key_type=trustme.KeyType.RSA))

    def client(self, name: str) -> Certificate:
        return self._write(name, self._ca.issue_cert(common_name=name))

    def _write(self, name: str, leaf: trustme.LeafCert) -> Certificate:
        made = Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        made.chain.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        made.key.write_bytes(leaf.private_key_pem.bytes())
        return made
