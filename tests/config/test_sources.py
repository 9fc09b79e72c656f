import tomllib
from pathlib import Path

import msgpack
import pytest

from broker.config.schema import Config, ConfigError, Limits, needs_carrier
from broker.config.sources import KINDS, Given, described, from_assignments, load, restored
from tests.conftest import ROOT

NOWHERE = Path("/nowhere/weir.toml")


def written(folder: Path, text: str) -> Path:
    file = folder / "weir.toml"
    file.write_text(text, encoding="utf-8")
    return file


def refusal(file: Path | None = None, environ: dict[str, str] | None = None, *assignments: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load(file, environ or {}, from_assignments(assignments), default_file=NOWHERE)
    return str(refused.value)


def test_without_any_source_the_defaults_are_in_force() -> None:
    """`weir start` on a bare machine would need a file."""
    assert Config() == load(environ={}, default_file=NOWHERE).config


def test_the_commented_file_has_every_default_and_names_every_key() -> None:
    """The file that users copy would change a setting that they did not touch, or hide one from them."""
    file = ROOT / "deploy" / "weir.toml"

    loaded = load(file, {})

    assert Config() == loaded.config
    assert set(KINDS) == set(loaded.sources)


def test_later_sources_win_and_say_so(tmp_path: Path) -> None:
    """An option on the command line would not override the file."""
    file = written(tmp_path, "[limits]\nqos = 0\nqueue = 1\npending = 5\n")
    environ = {"WEIR_LIMITS__QOS": "1", "WEIR_LIMITS__QUEUE": "2"}

    loaded = load(file, environ, from_assignments(["limits.qos=2"]))

    assert Limits(qos=2, queue=2, pending=5) == loaded.config.limits
    sources = {one.key: one.source for one in loaded.describe() if one.key.startswith("limits.")}
    assert "--set" == sources["limits.qos"]
    assert "the environment (WEIR_LIMITS__QUEUE)" == sources["limits.queue"]
    assert f"{file}, line 4" == sources["limits.pending"]
    assert "default" == sources["limits.retain"]


def test_the_usual_file_is_read_only_if_it_is_there(tmp_path: Path) -> None:
    """An installed service would ignore its file."""
    file = written(tmp_path, "log.level = 'debug'")

    assert "debug" == load(environ={}, default_file=file).config.log.level
    assert "info" == load(environ={}, default_file=tmp_path / "absent.toml").config.log.level


def test_a_file_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    """A misspelt --config would start a broker with the defaults."""
    file = tmp_path / "absent.toml"

    assert f"Cannot read the configuration file {file}: No such file or directory." == refusal(file)


def test_a_file_that_is_not_toml_is_refused_with_the_line(tmp_path: Path) -> None:
    """The user would look for the mistake in the whole file."""
    sentence = refusal(written(tmp_path, "[limits]\nqos = ?\n"))

    assert "weir.toml is not TOML: Invalid value (at line 2" in sentence


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    """A binary file given by mistake would end in a traceback."""
    file = tmp_path / "weir.toml"
    file.write_bytes(b"\xff\xfe")

    assert f"Cannot read the configuration file {file}: it is not UTF-8." == refusal(file)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[limits]\n# qos = 1\n\nqos = 3", 4),
        ("[limits] # of clients\nqos = 3", 2),
        ("limits.qos = 3", 1),
        ('[ "limits" ]\n"qos" = 3', 2),
        ("[log]\nlevel = 'info'\n[limits]\n  qos= 3", 4),
    ],
)
def test_a_bad_value_in_a_file_is_refused_with_file_line_key_value_and_what_would_be_right(
    tmp_path: Path, text: str, line: int
) -> None:
    """Promise 5: bad configuration is refused at start, with the key, the value and what would be right."""
    file = written(tmp_path, text)

    expected = f"limits.qos = 3 in {file}, line {line} is not valid: it must be a whole number from 0 to 2."
    assert expected == refusal(file)


def test_where_no_line_can_be_told_the_file_still_is(tmp_path: Path) -> None:
    """A value in an inline table would be refused without a place, or with a wrong one."""
    file = written(tmp_path, "limits = { qos = 3 }")

    assert f"limits.qos = 3 in {file} is not valid: it must be a whole number from 0 to 2." == refusal(file)


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("limits.packet_byte", "did you mean limits.packet_bytes?"),
        ("limit.qos", "did you mean limits.qos?"),
        ("qos", "did you mean limits.qos?"),
        ("limits", "did you mean limits.qos?"),
        ("delivery.receive_maximum", "did you mean limits.receive_maximum?"),
        ("colour", "`weir config show` lists those there are."),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(key: str, advice: str) -> None:
    """A misspelt setting would be ignored, and its default be in force."""
    assert f"Unknown setting {key} = '1' in --set: {advice}" == refusal(None, None, f"{key}=1")


def test_a_table_where_a_value_belongs_is_refused(tmp_path: Path) -> None:
    """[limits.qos] would pass as a table of its own."""
    assert "Unknown setting limits.qos.highest = 1 in" in refusal(written(tmp_path, "[limits.qos]\nhighest = 1"))


def test_a_value_where_a_table_belongs_is_refused(tmp_path: Path) -> None:
    """`limits = 5` would replace a group of settings by a number."""
    assert "Unknown setting limits = 5 in" in refusal(written(tmp_path, "limits = 5"))


def test_a_bad_variable_is_refused_by_its_name() -> None:
    """The user would look in the file for what the environment said."""
    sentence = refusal(None, {"WEIR_LISTENERS__TCP__PORT": "65536"})

    assert (
        "listeners.tcp.port = '65536' in the environment (WEIR_LISTENERS__TCP__PORT) is not valid: "
        "it must be a whole number from 0 to 65535." == sentence
    )


def test_an_unknown_variable_is_refused() -> None:
    """A misspelt variable would be ignored."""
    sentence = refusal(None, {"WEIR_LIMITS__QUEU": "5"})

    expected = "Unknown setting limits.queu = '5' in the environment (WEIR_LIMITS__QUEU): did you mean limits.queue?"
    assert expected == sentence


def test_a_variable_with_too_few_underscores_is_refused() -> None:
    """WEIR_LOG_LEVEL would be ignored, as if it were somebody else's."""
    sentence = refusal(None, {"WEIR_LOG_LEVEL": "debug"})

    assert "Unknown variable WEIR_LOG_LEVEL = 'debug' in the environment: did you mean WEIR_LOG__LEVEL?" == sentence


def test_variables_of_others_are_left_alone() -> None:
    """Kubernetes sets WEIR_PORT for a service named weir; the broker in it would not start."""
    environ = {"WEIR_PORT": "tcp://10.0.0.1:1883", "WEIR_COMPILE": "1", "HOME": "/", "XWEIR_LOG__LEVEL": "loud"}

    assert Config() == load(environ=environ, default_file=NOWHERE).config


def test_an_assignment_without_a_value_is_refused() -> None:
    """`--set limits.qos` would pass for nothing."""
    assert "--set limits.qos lacks a value: write --set key=value." == refusal(None, None, "limits.qos")


def test_a_source_is_checked_even_where_a_later_one_wins(tmp_path: Path) -> None:
    """A mistake would stay in the file until the day the option that hides it is taken away."""
    assert "limits.qos = 9 in" in refusal(written(tmp_path, "limits.qos = 9"), None, "limits.qos=1")


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("delivery.low_watermark=2MiB", "it must be less than delivery.high_watermark (1310720 bytes)."),
        ("delivery.low_watermark=1280KiB", "it must be less than delivery.high_watermark (1310720 bytes)."),
        ("delivery.outbound_budget=1MiB", "it must be 0 or at least delivery.high_watermark (1310720 bytes)."),
        ("limits.queue_bytes=1KiB", "it must be 0 or at least limits.packet_bytes (1048576 bytes)."),
        ("listeners.tcp.enabled=false", "it must be true: no other listener is enabled."),
        ("redis.prefix=", "it must be a word without braces or spaces."),
        ("redis.prefix={a}", "it must be a word without braces or spaces."),
        ("redis.prefix=a b", "it must be a word without braces or spaces."),
        *[
            (
                f"quotas.{scope}.incoming_bytes=64KiB/s",
                'it must be of windows that hold limits.packet_bytes, such as "1048576:60".',
            )
            for scope in ("session", "tenant", "cluster")
        ],
    ],
)
def test_settings_that_contradict_each_other_are_refused(assignment: str, sentence: str) -> None:
    """A broker would start that flaps, cannot queue a lawful packet, or listens nowhere."""
    refused = refusal(None, None, assignment)

    assert refused.startswith(assignment.partition("=")[0]) and " in --set is not valid: " in refused
    assert refused.endswith(sentence)


OPEN = ["0.0.0.0", "::", "192.0.2.1", "::ffff:127.0.0.1", "broker.example"]
LOOPBACK = ["127.0.0.1", "127.1.2.3", "::1", "localhost"]
WAYS = "unless access.password_file names a file that `weir passwd` made, or access.allow_anonymous = true."


@pytest.mark.parametrize("listener", ["tcp", "ws"])
@pytest.mark.parametrize("host", OPEN)
def test_an_address_that_others_reach_needs_a_word_on_who_may_come_in(listener: str, host: str) -> None:
    """Somebody would publish a broker that everybody may use, by accident."""
    options = [f"listeners.{listener}.host=127.0.0.1,{host}", f"listeners.{listener}.enabled=true"]
    refused = refusal(None, None, *options)

    assert f'listeners.{listener}.host = ["127.0.0.1", "{host}"] in --set is not valid: it must be loopback' in refused
    assert refused.endswith(f"as anybody could come in at {host}, {WAYS}")
    for way in ("access.password_file=/etc/weir/passwords", "access.allow_anonymous=true"):
        load(environ={}, options=from_assignments([*options, way]), default_file=NOWHERE)


@pytest.mark.parametrize("listener", ["tls", "wss"])
def test_certificates_that_clients_must_have_are_enough(listener: str) -> None:
    """A fleet whose devices have certificates would need a password file that nobody uses, or be open to everybody."""
    files = ["tls.certificate=a", "tls.key=b", "tls.client_ca=c"]
    options = [f"listeners.{listener}.host=0.0.0.0", f"listeners.{listener}.enabled=true", *files]
    required = [*options, "tls.client_certificate=required"]
    load(environ={}, options=from_assignments(required), default_file=NOWHERE)

    assert WAYS in refusal(None, None, *options, "tls.client_certificate=optional")
    assert WAYS in refusal(None, None, *required, "listeners.tcp.host=0.0.0.0")


def test_a_revocation_list_needs_its_authority() -> None:
    """The list would be named, and no certificate verified."""
    assert refusal(None, None, "tls.client_crl=list.pem").startswith('tls.client_ca = "" in the defaults is not valid')


def test_each_quota_can_be_set() -> None:
    """A limit that the manual names would be refused, or not be the one that is in force."""
    limits = ("incoming_messages", "incoming_bytes", "outgoing_messages", "outgoing_bytes", "subscriptions")
    keys = [f"{scope}.{limit}" for scope in ("session", "tenant", "cluster") for limit in limits]
    rates = {
        f"quotas.{key}": f"{seconds}GiB:1" if "bytes" in key else f"{seconds}:1"
        for seconds, key in enumerate([*keys, "cluster.total_messages"], 1)
    }
    options = from_assignments([f"{key}={rate}" for key, rate in rates.items()] + ["quotas.tenant_of=user"])
    loaded = load(environ={}, options=options, default_file=NOWHERE)

    shown = {one.key: one.text for one in loaded.describe()}
    assert {key: f'"{rate}"' for key, rate in rates.items()}.items() <= shown.items()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://weir:s3:cr@t@host:1/0", "redis://weir:***@host:1/0"),
        ("unix://:secret@/run/redis?db=1", "unix://:***@/run/redis?db=1"),
        ("redis://host", "redis://host"),
    ],
)
def test_a_password_is_not_shown(url: str, shown: str) -> None:
    """`weir config show` is what people paste into a report of a bug."""
    loaded = load(environ={}, options=from_assignments([f"redis.url={url}"]), default_file=NOWHERE)
    (found,) = [one for one in loaded.describe() if one.key == "redis.url"]

    assert (shown, f'"{shown}"', url) == (found.value, found.text, loaded.config.redis.url)


def test_quotas_of_tenants_need_a_rule_that_names_them() -> None:
    """The quotas would be in the file, and nobody held to them."""
    quota = "quotas.tenant.incoming_messages=100/s"

    sentence = refusal(None, None, quota)
    right = 'a rule such as "user", as [quotas.tenant] says what tenants may do.'
    assert f'quotas.tenant_of = "" in the defaults is not valid: it must be {right}' == sentence
    rule = "quotas.tenant_of=user-suffix:@"
    assert "100/s" == load(None, {}, from_assignments([quota, rule]), NOWHERE).config.quotas.tenant.incoming_messages


def test_loopback_and_what_is_switched_off_need_none() -> None:
    """`weir start` on a bare machine would need configuration."""
    options = [f"listeners.tcp.host={','.join(LOOPBACK)}", "listeners.ws.host=0.0.0.0"]

    load(environ={}, options=from_assignments(options), default_file=NOWHERE)


def test_a_contradiction_with_a_default_names_the_defaults() -> None:
    """The user would be told of a file or option that does not have the key."""
    assert 'delivery.low_watermark = "640KiB" in the defaults is not valid' in refusal(
        None, None, "delivery.high_watermark=500KiB"
    )


def test_lists_are_written_as_lists_or_with_commas() -> None:
    """The addresses to listen on could be set in the file only."""
    given = Given("listeners.tcp.host", ["127.0.0.2", "::1"], "--host")

    assert ("127.0.0.2", "::1") == load(environ={}, options=[given], default_file=NOWHERE).config.listeners.tcp.host
    environ = {"WEIR_LISTENERS__TCP__HOST": "127.0.0.2, ::1"}
    assert ("127.0.0.2", "::1") == load(environ=environ, default_file=NOWHERE).config.listeners.tcp.host


def test_what_is_shown_is_toml_with_the_same_meaning() -> None:
    """What `weir config show` prints could not be copied into a file."""
    options = from_assignments(["listeners.tcp.host=::1", "sys.interval=0", "limits.qos=1"])
    loaded = load(environ={}, options=options, default_file=NOWHERE)

    shown = "\n".join(f"{one.key} = {one.text}" for one in loaded.describe())

    tree = tomllib.loads(shown)
    assert ["::1"] == tree["listeners"]["tcp"]["host"]
    assert {"interval": 0} == tree["sys"]
    again = load(environ={}, options=[Given(key, _leaf(tree, key), "shown") for key in KINDS], default_file=NOWHERE)
    assert loaded.config == again.config


def _leaf(tree: dict[str, object], key: str) -> object:
    value: object = tree
    for name in key.split("."):
        assert isinstance(value, dict)
        value = value[name]
    return value


def test_options_of_kafka_are_one_table(tmp_path: Path) -> None:
    """The names of another program would be looked for among Weir's own, or the options not reach the carrier."""
    options = 'security_protocol = "SASL_SSL"\nssl_check_hostname = false\n'
    file = written(tmp_path, f'kafka.hosts = ["k:1", "[::1]:2"]\n[kafka.options]\n{options}')
    loaded = load(file, {}, default_file=NOWHERE)
    expected = (("security_protocol", "SASL_SSL"), ("ssl_check_hostname", False))
    assert (("k:1", "[::1]:2"), expected) == (loaded.config.kafka.hosts, loaded.config.kafka.options)
    shown = {one.key: one for one in loaded.describe()}["kafka.options"]
    assert dict(expected) == shown.value
    again = from_assignments(["kafka.hosts=k:1, [::1]:2", f"kafka.options={shown.text}"])

    assert loaded.config == load(None, {}, again, NOWHERE).config
    assert loaded.config == restored(msgpack.unpackb(msgpack.packb(described(loaded.config))))


def test_passwords_are_no_options_of_kafka() -> None:
    """`weir config show` would print them."""
    told = refusal(None, None, 'kafka.options={sasl_plain_password = "secret"}')

    assert "kafka.password_file names a file" in told


def test_the_password_of_sentinels_needs_sentinels() -> None:
    """The setting would have no effect, and nobody would notice that the URL names the server itself."""
    given = "redis.sentinel_password_file=file"
    with pytest.raises(ConfigError, match=r"redis\.url .* must be a redis\+sentinel:// URL"):
        load(None, {}, from_assignments(["redis.url=redis://host", given]), NOWHERE)

    load(None, {}, from_assignments(["redis.url=rediss+sentinel://host/weir", given]), NOWHERE)


def test_logs_need_a_place() -> None:
    """Settings would have no effect."""
    with pytest.raises(ConfigError, match="must be a list of brokers"):
        load(None, {}, from_assignments(["kafka.password_file=x"]), NOWHERE)
    kept = from_assignments(['application.clients=[{client = "a"}]', "store.durability=process"])

    assert needs_carrier(load(None, {}, kept, NOWHERE).config)
    assert needs_carrier(load(None, {}, from_assignments(["kafka.hosts=k:1"]), NOWHERE).config)
    assert not needs_carrier(Config())


def test_a_worker_restores_what_its_supervisor_describes() -> None:
    """A setting would be in force in the supervisor and not where clients are served."""
    given = {
        "listeners.tcp.host": "0.0.0.0,::",
        "access.allow_anonymous": "true",
        "drain.timeout": "250ms",
        "limits.packet_bytes": "2MiB",
        "tls.minimum": "1.3",
        "websocket.path": "/an other",
    }
    config = load(None, {}, from_assignments([f"{key}={value}" for key, value in given.items()]), NOWHERE).config

    over_the_link = msgpack.unpackb(msgpack.packb(described(config)))

    assert config == restored(over_the_link)
    assert not [key for key in over_the_link if key.startswith(("node.", "admin."))]


def test_the_private_server_has_no_replicas() -> None:
    """A node would start that never acknowledges anything."""
    wanted = from_assignments(["store.durability=replicated", "redis.url=redis://far"])
    with pytest.raises(ConfigError) as refused:
        load(None, {}, wanted[:1], default_file=NOWHERE)

    assert 'as store.durability = "replicated": the private server has none.' in str(refused.value)
    assert "replicated" == load(None, {}, wanted, default_file=NOWHERE).config.store.durability


def test_qos_0_is_not_kept_where_sessions_are_stored() -> None:
    """An operator would believe that it waits, while it is dropped; or get it twice after a crash."""
    both = from_assignments(["limits.queue_qos0=true", "store.durability=process"])
    with pytest.raises(ConfigError) as refused:
        load(None, {}, both, default_file=NOWHERE)

    assert 'it must be false, as store.durability = "process" stores no QoS 0.' in str(refused.value)
    assert load(None, {}, both[:1], default_file=NOWHERE).config.limits.queue_qos0


def test_a_backbone_without_kafka_is_refused() -> None:
    """The node would start, and acknowledge publishes that are nowhere."""
    given = from_assignments(["inbound.backbone=kafka"])
    with pytest.raises(ConfigError, match="must be a list of brokers, as inbound"):
        load(None, {}, given, NOWHERE)

    assert load(None, {}, [*given, *from_assignments(["kafka.hosts=k:1"])], NOWHERE).config.inbound.enabled()


def test_consumer_groups_without_kafka_are_refused() -> None:
    """The node would start, and services that share a filter get nothing."""
    given = from_assignments(
        ['application.clients=[{client = "a"}]', "application.shared=groups", "store.durability=process"]
    )
    with pytest.raises(ConfigError, match="must be a list of brokers, as application"):
        load(None, {}, given, NOWHERE)

    found = load(None, {}, [*given, *from_assignments(["kafka.hosts=k:1"])], NOWHERE).config
    assert "groups" == found.application.shared
