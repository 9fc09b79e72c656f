# Spark's Kafka connector: what Java's client is told of the settings of a node, and where its jars come from.
from pathlib import Path
from typing import Any

import pytest

from analytics.connector import ConnectorUnusable, KafkaAddress, jars, java_options

KEY = "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n"
CHAIN = "-----BEGIN CERTIFICATE-----\nMIIC\n-----END CERTIFICATE-----\n"


def options(password: str = "", /, **given: Any) -> dict[str, str]:
    return java_options(KafkaAddress(hosts=("k1:9092", "k2:9093"), options=given, password=password))


def test_without_options_only_the_brokers_are_told() -> None:
    """The analysis would connect elsewhere, or expect a password that there is not."""
    assert {"bootstrap.servers": "k1:9092,k2:9093"} == options()


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", "plain.PlainLoginModule"), ("SCRAM-SHA-512", "scram.ScramLoginModule")],
)
def test_a_user_logs_in_with_any_password(mechanism: str, module: str) -> None:
    """A quotation mark in a password would be an error of Java, or let somebody write options of it."""
    found = options('p"a\\ss;', security_protocol="SASL_SSL", sasl_mechanism=mechanism, sasl_plain_username='weir "x')

    login = f'org.apache.kafka.common.security.{module} required username="weir \\"x" password="p\\"a\\\\ss;";'
    assert {
        "bootstrap.servers": "k1:9092,k2:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": login,
    } == found


def test_certificates_are_told_as_text(tmp_path: Path) -> None:
    """Each machine of a Spark cluster would need the files, and Java takes no PEM files as Python does."""
    authorities, both, key = (tmp_path / name for name in ("ca.pem", "both.pem", "key.pem"))
    authorities.write_text(CHAIN)
    both.write_text(CHAIN + KEY)
    key.write_text(KEY)
    store = {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": CHAIN + KEY, "ssl.keystore.key": KEY}

    found = options(security_protocol="SSL", ssl_cafile=str(authorities), ssl_certfile=str(both), ssl_check_hostname=0)
    assert {
        "bootstrap.servers": "k1:9092,k2:9093",
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": CHAIN,
        "ssl.endpoint.identification.algorithm": "",
        **store,
    } == found
    assert store.items() <= options(ssl_certfile=str(both), ssl_keyfile=str(key), ssl_check_hostname=True).items()


def test_what_java_cannot_be_told_is_one_sentence(tmp_path: Path) -> None:
    """The job would wait for a Kafka that lets it in never, and say nothing of the option that was left out."""
    old = tmp_path / "old.pem"
    old.write_text(CHAIN + "-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----\n")
    for given, sentence in (
        ({"ssl_ciphers": "ECDHE"}, "cannot connect to Kafka with ssl_ciphers = 'ECDHE' of kafka.options: --kafka ''"),
        ({"sasl_mechanism": "OAUTHBEARER"}, "with sasl_mechanism = 'OAUTHBEARER' of kafka.options"),
        ({"ssl_certfile": str(old)}, "`openssl pkcs8 -topk8 -nocrypt` makes one of it."),
        ({"ssl_cafile": str(tmp_path / "none")}, f"Cannot read ssl_cafile = {tmp_path / 'none'} of kafka.options: No"),
    ):
        with pytest.raises(ConnectorUnusable) as refused:
            options(**given)
        assert sentence in str(refused.value)


def test_an_address_survives_the_environment() -> None:
    """The job would connect with other options than the command has found."""
    address = KafkaAddress(
        hosts=("k:1",), options={"ssl_check_hostname": False, "sasl_mechanism": "PLAIN"}, password="é"
    )

    assert address == KafkaAddress.decode(address.encode())
    assert "é" not in repr(address)


def test_without_maven_it_is_told_how_to_get_the_jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The job would end with a traceback about a data source that Spark does not know."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    sentence = r"^The jars of Spark's Kafka connector 4\.2\.0 come through Maven, .* install the package maven\.$"
    with pytest.raises(ConnectorUnusable, match=sentence):
        jars()
    folder = tmp_path / "weir" / "spark-kafka-4.2.0"
    folder.mkdir()
    (folder / "one.jar").touch()

    assert [folder / "one.jar"] == jars()
