# Spark's Kafka connector: its jars, and the options of Java's Kafka client that it is given.
#
# The jars (10 MB) come through Maven, once, into the cache of the user. `python -m analytics.connector` only has Maven
# get what is missing, and needs nothing but a Python.
#
# The options are those of the node (`kafka.options`), which have the names of kafka-python. Java's names differ, and it
# takes certificates and keys as text: so the files need to be on this machine only, and not on those of a Spark
# cluster.
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from analytics import maven

POM: Final = Path(__file__).with_name("connector.xml")
CONNECTOR: Final = "spark-sql-kafka-0-10_2.13"
ADDRESS: Final = "WEIR_ANALYTICS_KAFKA"  # the environment variable with a KafkaAddress, as it may have a password
LOGINS: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
KERBEROS: Final = "com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true;"
PKCS8: Final = "-----BEGIN PRIVATE KEY-----"

Option = str | int


class ConnectorUnusable(Exception):
    """The text is one sentence that says what to do."""


@dataclass(frozen=True, kw_only=True)
class KafkaAddress:
    """Where Kafka is, and how to connect to it, as in the settings `kafka` of a node."""

    hosts: tuple[str, ...]
    options: dict[str, Option] = field(default_factory=dict)  # by the names of kafka-python
    password: str = field(default="", repr=False)  # of SASL

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> "KafkaAddress":
        found = json.loads(text)
        return cls(hosts=tuple(found["hosts"]), options=found["options"], password=found["password"])


def jars() -> list[Path]:
    """The jars of the connector. Raises ConnectorUnusable."""
    what = f"Spark's Kafka connector {maven.version(POM, CONNECTOR)}"
    try:
        found = maven.copied(POM, maven.cache(f"spark-kafka-{maven.version(POM, CONNECTOR)}"), what)
    except maven.MavenError as error:
        raise ConnectorUnusable(str(error)) from None
    return sorted(found.glob("*.jar"))


def java_options(address: KafkaAddress) -> dict[str, str]:
    """Return *address* as options of Java's Kafka client. Raises ConnectorUnusable."""
    options = dict(address.options)
    found = {"bootstrap.servers": ",".join(address.hosts)}
    for name, java in SAME.items():
        if name in options:
            found[java] = str(options.pop(name))
    for name, take in TAKEN.items():
        if name in options:
            take(options, found)
    if found.get("sasl.mechanism") in LOGINS:
        module = LOGINS[found["sasl.mechanism"]]
        user = _quoted(str(options.pop("sasl_plain_username", "")))
        found["sasl.jaas.config"] = f"{module} required username={user} password={_quoted(address.password)};"
    elif found.get("sasl.mechanism") == "GSSAPI":
        found["sasl.jaas.config"] = KERBEROS
    elif "sasl.mechanism" in found:
        raise _unknown("sasl_mechanism", found["sasl.mechanism"])
    if options:
        raise _unknown(*next(iter(options.items())))
    return found


def _authorities(options: dict[str, Option], found: dict[str, str]) -> None:
    found["ssl.truststore.type"] = "PEM"
    found["ssl.truststore.certificates"] = _text("ssl_cafile", options)


def _certificate(options: dict[str, Option], found: dict[str, str]) -> None:
    """The certificate of the client, with its key, which may be in the same file."""
    chain = _text("ssl_certfile", options)
    key = _text("ssl_keyfile", options) if "ssl_keyfile" in options else chain
    if PKCS8 not in key:
        raise ConnectorUnusable(
            "Java reads unencrypted PKCS #8 keys only, and that of kafka.options is another one: "
            "`openssl pkcs8 -topk8 -nocrypt` makes one of it."
        )
    found["ssl.keystore.type"] = "PEM"
    found["ssl.keystore.certificate.chain"] = chain
    found["ssl.keystore.key"] = key[key.index(PKCS8) :]


def _check_hostname(options: dict[str, Option], found: dict[str, str]) -> None:
    if not options.pop("ssl_check_hostname"):
        found["ssl.endpoint.identification.algorithm"] = ""


SAME: Final = {
    "security_protocol": "security.protocol",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_kerberos_service_name": "sasl.kerberos.service.name",
}
TAKEN: Final[dict[str, Callable[[dict[str, Option], dict[str, str]], None]]] = {
    "ssl_cafile": _authorities,
    "ssl_certfile": _certificate,
    "ssl_check_hostname": _check_hostname,
}


def _text(name: str, options: dict[str, Option]) -> str:
    """Take the option *name* out of *options*, and return the text of the file that it names."""
    path = str(options.pop(name))
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConnectorUnusable(f"Cannot read {name} = {path} of kafka.options: {why}.") from None


def _unknown(name: str, value: Option) -> ConnectorUnusable:
    return ConnectorUnusable(
        f"The analysis cannot connect to Kafka with {name} = {value!r} of kafka.options: "
        "--kafka '' has it read the stream of Redis."
    )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def main() -> int:
    try:
        jars()
    except ConnectorUnusable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
