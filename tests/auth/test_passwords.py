# The password file: what is a line, who knows their password, and what a stranger cannot learn.
import base64
import hashlib
from typing import Any

import pytest
from argon2 import low_level
from hypothesis import given
from hypothesis import strategies as st

from broker.auth.lines import BadLine
from broker.auth.passwords import (
    DIGEST_BYTES,
    ITERATIONS,
    SALT_BYTES,
    Passwords,
    check_name,
    hash_password,
    name_of,
    parse_passwords,
    with_user,
    without_user,
)

KEY = bytes(range(32))
SALT = b"twelve bytes"


def old_line(name: str, password: bytes) -> str:
    """As Mosquitto before 2.0 wrote it."""
    hashed = hashlib.sha512(password + SALT).digest()
    return f"{name}:$6${base64.b64encode(SALT).decode()}${base64.b64encode(hashed).decode()}"


def new_line(name: str, password: bytes, iterations: int = 3) -> str:
    return f"{name}:{hash_password(password, SALT, iterations)}"


def argon2_line(name: str, password: bytes, memory: int = 64, passes: int = 2, lanes: int = 1) -> str:
    """As Mosquitto 2.1 writes it."""
    return f"{name}:{low_level.hash_secret(password, SALT, passes, memory, lanes, 64, low_level.Type.ID).decode()}"


def parsed(*lines: str) -> Passwords:
    return parse_passwords("\n".join(lines), KEY)


@pytest.mark.parametrize("line", [old_line("me", b"right"), new_line("me", b"right"), argon2_line("me", b"right")])
def test_only_the_right_password_is_taken(line: str) -> None:
    """Somebody would come in with any password, or nobody with the right one."""
    users = parsed(line)

    assert [True, False, False] == [users.check("me", given)() for given in (b"right", b"Right", b"")]
    assert not users.check("you", b"right")()


def test_blank_lines_comments_and_blanks_around_lines_mean_nothing() -> None:
    """A file that Mosquitto reads would be refused, or a user be lost, e.g. where an editor wrote CR LF."""
    users = parse_passwords(f"# staff\r\n\r\n  {new_line('me', b'x')}  \r\n   # me:$7$\n", KEY)

    assert 1 == len(users)
    assert users.check("me", b"x")()


HASH = base64.b64encode(bytes(64)).decode()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("me:secret", "name:$7$iterations$salt$hash"),
        ("me:", "name:$7$iterations$salt$hash"),
        ("secret", "name:$7$iterations$salt$hash"),
        ("me:$5$c2FsdA==$" + HASH, "name:$7$iterations$salt$hash"),
        ("me:$argon2id$v=16$m=64,t=1,p=1$c2FsdHNhbHQ$" + HASH, "$v=19$"),
        ("me:$argon2id$v=19$m=64,t=1$c2FsdHNhbHQ$" + HASH, "m=KiB,t=passes,p=lanes"),
        ("me:$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHQ", "m=KiB,t=passes,p=lanes"),
        ("me:$argon2id$v=19$m=64,t=1,p=1$c2FsdA$" + HASH, "a salt of Argon2id with 4 bytes: it must have 8 to 128"),
        ("me:$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHQ$c2FsdA", "a hash of Argon2id with 4 bytes"),
        ("me:$argon2id$v=19$m=64,t=1,p=1$?$" + HASH, "no base64"),
        ("me:$argon2id$v=19$m=15,t=1,p=2$c2FsdHNhbHQ$" + HASH, "from 8 KiB for each lane to 262144"),
        ("me:$argon2id$v=19$m=262145,t=1,p=1$c2FsdHNhbHQ$" + HASH, "from 8 KiB for each lane to 262144"),
        ("me:$argon2id$v=19$m=64,t=0,p=1$c2FsdHNhbHQ$" + HASH, "it must be from 1 to 65536"),
        ("me:$argon2id$v=19$m=64,t=65537,p=1$c2FsdHNhbHQ$" + HASH, "it must be from 1 to 65536"),
        ("me:$argon2id$v=19$m=6400,t=1,p=17$c2FsdHNhbHQ$" + HASH, "from 1 to 16"),
        ("me:$7$0$c2FsdA==$" + HASH, "from 1 to 10000000"),
        ("me:$7$x$c2FsdA==$" + HASH, "from 1 to 10000000"),
        ("me:$7$99999999$c2FsdA==$" + HASH, "from 1 to 10000000"),
        ("me:$7$101$?$" + HASH, "no base64"),
        ("me:$7$101$$" + HASH, "no base64"),
        ("me:$7$101$c2FsdA==$c2FsdA==", "64"),
        (":$7$101$c2FsdA==$" + HASH, "printable"),
        (new_line("twice", b"x"), "line 1"),
    ],
)
def test_a_bad_line_is_refused_with_its_number_and_what_would_be_right(line: str, words: str) -> None:
    """A user would be locked out by a slip of an editor, or a plain password be let stand; and nobody told where."""
    with pytest.raises(BadLine) as refused:
        parsed(new_line("twice", b"x"), "", line)

    assert 3 == refused.value.number
    assert words in str(refused.value)
    assert "secret" not in str(refused.value)  # it may be a password


@given(st.text())
def test_whatever_the_file_says_it_is_read_or_refused(text: str) -> None:
    """A strange file would end the start with a traceback instead of a sentence."""
    try:
        parse_passwords(text, KEY)
    except BadLine:
        pass


@pytest.mark.parametrize(
    ("lines", "iterations"),
    [
        ([new_line("cheap", b"x", 2), new_line("dear", b"x", 50)], 50),
        ([old_line("cheap", b"x"), new_line("dear", b"x", 50)], 50),
        ([old_line("cheap", b"x"), old_line("dear", b"x")], 0),
    ],
)
def test_every_check_costs_the_same_iterations(
    monkeypatch: pytest.MonkeyPatch, lines: list[str], iterations: int
) -> None:
    """Who measures our answers would learn which names exist, and whose password is hashed weakly."""
    users = parsed(*lines)
    spent: list[int] = []
    real = hashlib.pbkdf2_hmac

    def counting(name: str, password: bytes, salt: bytes, rounds: int) -> bytes:
        spent.append(rounds)
        return real(name, password, salt, rounds)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counting)
    costs = []
    for name in ("cheap", "dear", "nobody"):
        spent.clear()
        users.check(name, b"wrong")()
        costs.append(sum(spent))

    assert [iterations] * 3 == costs


def test_a_hash_of_argon2id_that_another_program_wrote_is_read() -> None:
    """We could read only what we write ourselves. The password and the hash are of the reference implementation."""
    users = parsed(
        "me:$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
    )

    assert users.check("me", b"password")()
    assert not users.check("me", b"passwort")()


@pytest.mark.parametrize(
    ("lines", "work"),
    [
        ([argon2_line("cheap", b"x", 64, 1), argon2_line("dear", b"x", 100, 3)], 300),
        ([argon2_line("cheap", b"x", 100, 1), argon2_line("dear", b"x", 64, 3, 2)], 192),
        ([new_line("cheap", b"x"), argon2_line("dear", b"x")], 128),
        ([old_line("cheap", b"x"), argon2_line("dear", b"x")], 128),
    ],
)
def test_every_check_costs_the_same_work_of_argon2id(
    monkeypatch: pytest.MonkeyPatch, lines: list[str], work: int
) -> None:
    """Who measures our answers would learn which names exist, and whose password is hashed weakly."""
    users = parsed(*lines)
    spent: list[int] = []
    real = low_level.hash_secret_raw

    def counting(password: bytes, salt: bytes, passes: int, memory: int, *rest: Any) -> bytes:
        spent.append(passes * memory)
        return real(password, salt, passes, memory, *rest)

    monkeypatch.setattr(low_level, "hash_secret_raw", counting)
    costs = []
    for name in ("cheap", "dear", "nobody"):
        spent.clear()
        users.check(name, b"wrong")()
        costs.append(sum(spent))

    assert [work] * 3 == costs


def test_an_empty_file_costs_as_much_as_one_that_we_wrote() -> None:
    """A broker without users would tell so by its quick answers."""
    assert ITERATIONS == parsed().check("me", b"x").cost.iterations


def test_what_was_verified_is_known_and_nothing_else() -> None:
    """A fleet that reconnects would be hashed anew, or somebody come in with another's verified password."""
    users = parsed(new_line("me", b"right"), new_line("you", b"right"))
    assert not users.knows("me", b"right")
    users.remember("me", b"right")

    assert users.knows("me", b"right")
    for name, password in (
        ("me", b"wrong"),
        ("you", b"right"),
        ("nobody", b"right"),
        ("", b"meright"),
        ("m", b"eright"),
    ):
        assert not users.knows(name, password)
    assert not parsed(new_line("me", b"right")).knows("me", b"right")  # read again: forgotten


def test_strangers_are_not_remembered() -> None:
    """The cache would grow by whatever names somebody makes up, or take a stranger in."""
    users = parsed(new_line("me", b"right"))
    users.remember("nobody", b"x")

    assert not users.knows("nobody", b"x")
    assert 1 == len(users)


def test_a_check_that_nobody_waits_for_costs_nothing() -> None:
    """Who connects and hangs up would still have us hash for seconds."""
    check = parsed(new_line("me", b"right")).check("me", b"right")
    check.abandoned = True

    assert not check()


def test_who_lost_their_password_is_told_from_who_kept_it() -> None:
    """A user that was deleted would stay connected for ever, or everybody be thrown out at each reload."""
    before = parsed(new_line("same", b"x"), new_line("changed", b"x"), new_line("deleted", b"x"))
    after = parsed(new_line("same", b"x"), new_line("changed", b"y"), new_line("new", b"x"))

    names = ("same", "changed", "deleted", "new", "nobody")
    assert ["changed", "deleted"] == [name for name in names if before.lost(after, name)]


NAMES = st.text(min_size=1, max_size=20).filter(lambda name: _is_name(name))


def _is_name(name: str) -> bool:
    try:
        check_name(name)
    except ValueError:
        return False
    return True


@given(NAMES, st.binary(max_size=100), st.binary(min_size=SALT_BYTES, max_size=SALT_BYTES), st.integers(1, 5))
def test_a_line_that_we_write_can_be_read(name: str, password: bytes, salt: bytes, iterations: int) -> None:
    """Somebody whose password `weir passwd` took could not come in."""
    users = parse_passwords(with_user("", name, hash_password(password, salt, iterations)), KEY)

    assert users.check(name, password)()


@pytest.mark.parametrize("name", ["", "a:b", "#me", " me", "me ", "m\ne", "m\0e", "x" * 65_536])
def test_a_name_that_a_line_cannot_hold_is_refused(name: str) -> None:
    """A name with a colon would be another's line, or break the file for all."""
    with pytest.raises(ValueError, match="must be"):
        check_name(name)


TEXT = "# staff\n\nme:$7$a\n you :$7$b\n# end"


def test_changing_one_line_changes_no_other() -> None:
    """`weir passwd` would lose comments or users, or give somebody two lines."""
    assert "# staff\n\nme:$7$new\n you :$7$b\n# end" == with_user(TEXT, "me", "$7$new")
    assert "# staff\n\nme:$7$a\nyou:$7$new\n# end" == with_user(TEXT, "you", "$7$new")
    assert TEXT + "\nthem:$7$new\n" == with_user(TEXT, "them", "$7$new")
    assert "a:$7$x\nb:$7$y\n" == with_user("a:$7$x\n", "b", "$7$y")


def test_a_user_can_be_taken_out() -> None:
    """`weir passwd --delete` would leave somebody in, or take others along."""
    assert "# staff\n\n you :$7$b\n# end" == without_user(TEXT, "me")
    with pytest.raises(KeyError):
        without_user(TEXT, "staff")


def test_names_are_found_in_lines_alone() -> None:
    """A comment would be taken for a user."""
    assert [None, None, "me", "me"] == [name_of(line) for line in ("", " # me:x", "me:$7$", " me : x")]


def test_no_password_is_kept() -> None:
    """A dump of the process would show the passwords of everybody who ever came in."""
    users = parsed(new_line("me", b"my password"))
    users.check("me", b"my password")()
    users.remember("me", b"my password")

    held = [getattr(credential, field) for credential in users.users() for field in ("salt", "hashed", "verified")]
    assert 3 == len(held)
    assert all(b"password" not in value for value in held)
    assert DIGEST_BYTES == len(held[2])


def test_a_new_password_is_hashed_with_the_rounds_that_are_recommended_today() -> None:
    """A stolen password file would be guessed twenty times as fast."""
    assert 210_000 <= ITERATIONS
