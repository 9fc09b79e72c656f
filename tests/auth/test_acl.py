# The ACL file: what its lines mean, and what a client's names cannot make of them.
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.auth.acl import Acl, parse_acl
from broker.auth.lines import BadLine
from broker.auth.rules import READ, Rule
from broker.session.principal import Principal
from tests.routing.reference import filters, matches, topics


def somebody(user: str | None = "alice", client_id: str = "phone") -> Principal:
    return Principal(client_id, user, 0)


def may(acl: Acl, topic: bytes, who: Principal | None = None) -> str:
    """ "r", "w", "rw" or "": what *who* (default: alice) may do with *topic*."""
    who = who or somebody()
    return "r" * acl.may_receive(who, topic) + "w" * acl.may_publish(who, topic)


def test_what_is_not_granted_is_denied() -> None:
    """A file that forgets a topic would leave it open."""
    acl = parse_acl("user alice\ntopic a")

    assert ["rw", "", "", ""] == [may(acl, topic) for topic in (b"a", b"b", b"a/b", b"$SYS/a")]
    assert "" == may(parse_acl(""), b"a")


@pytest.mark.parametrize(
    ("line", "rights"),
    [
        ("topic read a", "r"),
        ("topic write a", "w"),
        ("topic readwrite a", "rw"),
        ("topic a", "rw"),
        ("topic deny a", ""),
    ],
)
def test_each_access_grants_what_it_says(line: str, rights: str) -> None:
    """Who may only listen could publish."""
    assert rights == may(parse_acl(f"user alice\n{line}"), b"a")


def test_lines_belong_to_the_user_above_them() -> None:
    """One user would have another's rights; or everybody those of the anonymous."""
    acl = parse_acl("topic read public\nuser alice\ntopic a\nuser bob\ntopic b\nuser alice\ntopic c")
    alice, bob, anonymous = somebody("alice"), somebody("bob"), somebody(None)
    seen = {
        who.user: [may(acl, topic, who) for topic in (b"public", b"a", b"b", b"c")] for who in (alice, bob, anonymous)
    }

    assert {b"alice": ["", "rw", "", "rw"], b"bob": ["", "", "rw", ""], None: ["r", "", "", ""]} == seen


def test_a_denial_wins_wherever_it_stands() -> None:
    """A grant that somebody adds below would undo a denial."""
    acl = parse_acl("user alice\ntopic a/#\ntopic deny a/b\ntopic a/b\npattern deny +/+/secret")

    assert ["rw", "", "rw", ""] == [may(acl, topic) for topic in (b"a", b"a/b", b"a/c", b"a/c/secret")]


def test_patterns_hold_for_everybody_and_are_filled_with_their_names() -> None:
    """A device would have the topics of another."""
    acl = parse_acl("user alice\npattern write devices/%c/up\npattern read users/%u/#\npattern read x-%u-%c/+")

    assert "w" == may(acl, b"devices/phone/up")
    assert "" == may(acl, b"devices/other/up")
    assert "r" == may(acl, b"users/alice/1/2")
    assert "r" == may(acl, b"x-bob-tv/1", somebody("bob", "tv"))
    assert "" == may(acl, b"users/bob/1")
    assert "w" == may(acl, b"devices/phone/up", somebody(None))  # anonymous clients have an id
    assert "" == may(acl, b"users//1", somebody(None))  # and no user name


@pytest.mark.parametrize("name", ["#", "+", "a/b", "/", "a+", "#a"])
def test_a_name_cannot_widen_a_pattern(name: str) -> None:
    """Who calls itself "#" or "+" would read what all others say."""
    acl = parse_acl("pattern readwrite devices/%c/#\npattern readwrite users/%u/#\npattern readwrite %u/x")
    both = somebody(name, name)

    for topic in (b"devices/a/b", b"devices/other/x", b"users/a/b/c", b"users/bob/1", b"a/b/x", name.encode()):
        assert "" == may(acl, topic, both)
    assert not acl.may_subscribe(both, b"devices/#")


def test_a_name_cannot_make_a_topic_of_the_brokers_own() -> None:
    """Who calls itself "$SYS" would read the broker's statistics."""
    acl = parse_acl("pattern readwrite %c/#")

    assert "" == may(acl, b"$SYS/broker/uptime", somebody(None, "$SYS"))
    assert not acl.may_subscribe(somebody(None, "$SYS"), b"$SYS/#")


def test_a_name_with_a_placeholder_is_filled_in_once() -> None:
    """A client that calls itself "%u" would have the topics of the client that is called like its user."""
    acl = parse_acl("pattern readwrite c/%c\npattern readwrite u/%u")

    assert ["", "rw"] == [may(acl, topic, somebody("alice", "%u")) for topic in (b"c/alice", b"c/%u")]
    assert ["", "rw"] == [may(acl, topic, somebody("%c", "phone")) for topic in (b"u/phone", b"u/%c")]


@pytest.mark.parametrize("name", ["a/b", "+", "#"])
def test_a_name_cannot_escape_a_denial(name: str) -> None:
    """Who calls itself "a/b" would be free of what its pattern denies."""
    acl = parse_acl("topic readwrite #\ntopic readwrite $x/#\npattern deny control/%c/#")

    assert "rw" == may(acl, b"control/tv", somebody(None))
    assert "" == may(acl, b"control/phone/x", somebody(None))
    for topic in (b"control/a/b", b"control/x", b"other", b"$x/1"):
        assert "" == may(acl, topic, somebody(None, name))
    assert not acl.may_subscribe(somebody(None, name), b"#")


def test_wildcards_do_not_reach_what_begins_with_a_dollar() -> None:
    """`topic read #` would show the broker's statistics to everybody [MQTT-4.7.2-1]."""
    acl = parse_acl("user alice\ntopic read #\ntopic read +/x\nuser bob\ntopic read $SYS/#")

    assert ["", "r"] == [may(acl, b"$SYS/x"), may(acl, b"$SYS/x", somebody("bob"))]


def test_names_and_filters_may_have_blanks() -> None:
    """A user named "living room" could not be given anything."""
    acl = parse_acl("  user   living room \r\n\ttopic read  a topic/of mine \r\n# topic b\n\n")

    assert ["r", ""] == [may(acl, topic, somebody("living room")) for topic in (b"a topic/of mine", b"b")]


def test_one_word_is_a_filter_whatever_it_says() -> None:
    """A topic that is called "read" could not be granted."""
    assert "rw" == may(parse_acl("user alice\ntopic read"), b"read")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("topics a", "user, topic or pattern"),
        ("allow a", "user, topic or pattern"),
        ("topic", "'' is no topic filter"),
        ("topic all a", "read, write, readwrite or deny"),
        ("topic read a/#/b", "'#' as the last one"),
        ("pattern write a+/%c", "'+' as a whole level"),
        ("topic read a\0b", "no topic filter"),
        ("user", "user NAME"),
    ],
)
def test_a_bad_line_is_refused_with_its_number_and_what_would_be_right(line: str, words: str) -> None:
    """A misspelt denial would deny nothing, and nobody know."""
    with pytest.raises(BadLine, match="must be") as refused:
        parse_acl(f"# mine\n\n{line}\nuser alice")

    assert 3 == refused.value.number
    assert words in str(refused.value)


@given(st.text())
def test_whatever_the_file_says_it_is_read_or_refused(text: str) -> None:
    """A strange file would end the start with a traceback instead of a sentence."""
    try:
        parse_acl(text)
    except BadLine:
        pass


SUBSCRIBED = """\
user alice
topic read a/+/c
topic write b/#
topic readwrite d/e
topic read f/#
topic deny f/g/#
topic deny +/h
topic read i/h
pattern read %c/x
"""


@pytest.mark.parametrize(
    ("filter", "granted"),
    [
        *[(b"#", True), (b"a/b/c", True), (b"a/b/+", True), (b"+/+/+", True), (b"d/e", True), (b"+/x", True)],
        *[(b"f/#", True), (b"f", True), (b"f/+", True), (b"+/e", True), (b"d/e/#", True)],
        *[(b"b/#", False), (b"z", False), (b"a/b/d", False), (b"a/+", False), (b"a/b/c/d", False)],
        *[(b"f/g/#", False), (b"f/g", False), (b"f/h", False), (b"i/h", False), (b"i/+", False)],
        *[(b"$SYS/#", False), (b"phone/x", True), (b"tv/x", False)],
    ],
)
def test_a_subscription_is_refused_only_if_nothing_of_it_may_be_read(filter: bytes, granted: bool) -> None:
    """A dashboard that subscribes to all would be refused for one topic; or a client wait for what never comes."""
    assert granted == parse_acl(SUBSCRIBED).may_subscribe(somebody(), filter)


ACCESS = st.sampled_from(["read", "write", "readwrite", "deny"])


@given(st.lists(st.tuples(ACCESS, filters), max_size=6), topics)
def test_the_sorted_rules_decide_as_a_look_at_each_would(lines: list[tuple[str, bytes]], topic: bytes) -> None:
    """A rule would be missed because of where it was put."""
    acl = parse_acl("\n".join(["user alice", *(f"topic {access} {filter.decode()}" for access, filter in lines)]))
    fitting = [access for access, filter in lines if matches(filter, topic)]
    expected = (
        ""
        if "deny" in fitting
        else "".join(letter for letter, word in (("r", "read"), ("w", "write")) if {word, "readwrite"} & set(fitting))
    )

    assert expected == may(acl, topic)


@given(st.lists(st.tuples(ACCESS, filters), max_size=4), filters, topics)
def test_a_subscription_to_what_may_be_read_is_never_refused(
    lines: list[tuple[str, bytes]], filter: bytes, topic: bytes
) -> None:
    """A client could not subscribe to a topic that it may read."""
    acl = parse_acl("\n".join(["user alice", *(f"topic {access} {rule.decode()}" for access, rule in lines)]))

    if matches(filter, topic) and acl.may_receive(somebody(), topic):
        assert acl.may_subscribe(somebody(), filter)


@given(filters, filters, topics)
def test_the_common_part_of_two_filters_is_what_both_match(one: bytes, other: bytes, topic: bytes) -> None:
    """A subscription would be held against the wrong denials."""
    common = Rule(one, READ).meet(Rule(other, READ))
    both = matches(one, topic) and matches(other, topic)

    assert both == (common is not None and common.matches(topic.split(b"/")))


@given(filters, filters, topics)
def test_a_filter_that_covers_another_matches_all_of_it(one: bytes, other: bytes, topic: bytes) -> None:
    """A subscription would be refused for a denial that takes only a part of it."""
    if Rule(one, READ).covers(Rule(other, READ)) and matches(other, topic):
        assert matches(one, topic)


def test_replacing_the_rules_tells_those_who_keep_answers() -> None:
    """A reload would leave sessions and routes with what the former file said."""
    acl = parse_acl("user alice\ntopic a")
    before = acl.generation
    acl.replace(parse_acl("user alice\ntopic b"))

    assert ["", "rw"] == [may(acl, topic) for topic in (b"a", b"b")]
    assert before != acl.generation
