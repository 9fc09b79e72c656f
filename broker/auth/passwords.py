# Passwords, in the format of mosquitto_passwd: a line is "name:$7$iterations$salt$hash" (PBKDF2 with HMAC-SHA512) or
# "name:$6$salt$hash" (SHA-512 of the password and the salt, of Mosquitto before 2.0); salt and hash are base64.
#
# The answers tell an attacker whether a pair of name and password is right, and nothing else. So a name that is not in
# the file costs as much hashing as one that is, and every check costs as much as the most expensive line of the file: a
# fast answer would otherwise mean "this name exists, and its password is weakly hashed".
#
# Hashing is slow on purpose, and a fleet that reconnects after a power cut would pay it ten thousand times. So a
# verified password is remembered, as a digest with a key that only this process has; one digest for each user. The
# digests are as safe as the memory of the process, take as much memory as the file, and are forgotten when the file is
# read again.
import binascii
import hashlib
import hmac
from typing import Final

from broker.auth.lines import BadLine

# What OWASP recommends (2023): 0.1 s of a core, so a fleet of 10 000 users takes 18 minutes.
ITERATIONS: Final = 210_000
MOST_ITERATIONS: Final = 10_000_000  # take seconds of a core for each attempt: a larger number is a mistake
SALT_BYTES: Final = 12  # Mosquitto 2.0 accepts no other size
HASH_BYTES: Final = 64
DIGEST_BYTES: Final = 32
LONGEST_NAME: Final = 65_535  # bytes; MQTT cannot carry a longer one

FORM: Final = "it must be name:$7$iterations$salt$hash, as `weir passwd` and mosquitto_passwd write it"


class Credential:
    """The hash of one user's password: one line of the file."""

    def __init__(self, iterations: int, salt: bytes, hashed: bytes) -> None:
        self.iterations = iterations  # 0: a single SHA-512
        self.salt = salt
        self.hashed = hashed
        self.verified = b""  # the keyed digest of the password, once it was verified

    def same_as(self, other: "Credential") -> bool:
        return self.iterations == other.iterations and self.salt == other.salt and self.hashed == other.hashed


class Check:
    """The check of one password. It is called in another thread, so it uses nothing that changes."""

    def __init__(self, credential: Credential, password: bytes, cost: int) -> None:
        self.abandoned = False  # the result is not needed any more
        self.cost = cost  # iterations
        self._credential = credential
        self._password = password

    def __call__(self) -> bool:
        if self.abandoned:
            return False
        credential = self._credential
        if credential.iterations:
            hashed = _slow(self._password, credential.salt, credential.iterations)
        else:
            hashed = hashlib.sha512(self._password + credential.salt).digest()
        if credential.iterations < self.cost:
            _slow(self._password, credential.salt, self.cost - credential.iterations)
        return hmac.compare_digest(hashed, credential.hashed)


class Passwords:
    """The users of a password file. *key*: random bytes of this process, secret and at most 64."""

    def __init__(self, users: dict[str, Credential], key: bytes) -> None:
        self._users = users
        self._key = key
        self._cost = max([credential.iterations for credential in users.values()], default=ITERATIONS)
        # Stands for an unknown user. No password is known to have this hash.
        self._unknown = Credential(self._cost, key[:SALT_BYTES], bytes(HASH_BYTES))

    def __len__(self) -> int:
        return len(self._users)

    def users(self) -> list[Credential]:
        return list(self._users.values())

    def check(self, user: str, password: bytes) -> Check:
        """The check whether *password* is that of *user*, to be called in another thread."""
        return Check(self._users.get(user, self._unknown), password, self._cost)

    def knows(self, user: str, password: bytes) -> bool:
        """Whether this pair was verified before. False does not mean that the password is wrong."""
        credential = self._users.get(user, self._unknown)
        return hmac.compare_digest(self._digest(password), credential.verified)

    def remember(self, user: str, password: bytes) -> None:
        """Remember that this pair was verified."""
        credential = self._users.get(user)
        if credential is not None:
            credential.verified = self._digest(password)

    def lost(self, successor: "Passwords", user: str) -> bool:
        """Whether *user* is in this file, and its line in *successor* is different or missing."""
        before, after = self._users.get(user), successor._users.get(user)
        return before is not None and (after is None or not before.same_as(after))

    def _digest(self, password: bytes) -> bytes:
        return hashlib.blake2b(password, key=self._key, digest_size=DIGEST_BYTES).digest()


def parse_passwords(text: str, key: bytes) -> Passwords:
    """Parse the *text* of a password file. BadLine: a line has no meaning."""
    users: dict[str, Credential] = {}
    seen: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        name = name_of(line)
        if name is None:
            continue
        if name in seen:
            raise BadLine(number, f"user {name!r} is in line {seen[name]} already; it must be in one of them")
        seen[name] = number
        try:
            check_name(name)
            users[name] = _credential(line.strip().partition(":")[2])
        except ValueError as error:
            raise BadLine(number, str(error)) from None
    return Passwords(users, key)


def name_of(line: str) -> str | None:
    """The user name in a line of a password file; None for an empty line and for a comment."""
    line = line.strip()
    if not line or line.startswith("#"):
        return None
    return line.partition(":")[0].strip()


def check_name(name: str) -> None:
    """ValueError, with what would be right: *name* cannot be a user name in a password file."""
    if not name or ":" in name or name.startswith("#") or name != name.strip() or not name.isprintable():
        raise ValueError(
            f"user name {name!r}: it must be printable, without ':' and blanks around it, not begin with '#'"
        )
    if len(name.encode()) > LONGEST_NAME:
        raise ValueError(f"a user name of {len(name.encode())} bytes: it must be at most {LONGEST_NAME}")


def hash_password(password: bytes, salt: bytes, iterations: int) -> str:
    """The part of a line behind "name:". *salt*: SALT_BYTES random bytes."""
    hashed = _slow(password, salt, iterations)
    return f"$7${iterations}${_base64(salt)}${_base64(hashed)}"


def with_user(text: str, name: str, hashed: str) -> str:
    """The *text* of a password file with *hashed* as the password of *name*; other lines are unchanged."""
    lines = text.split("\n")
    entry = f"{name}:{hashed}"
    for position, line in enumerate(lines):
        if name_of(line) == name:
            lines[position] = entry
            return "\n".join(lines)
    separator = "\n" if text and not text.endswith("\n") else ""
    return f"{text}{separator}{entry}\n"


def without_user(text: str, name: str) -> str:
    """The *text* of a password file without the line of *name*. KeyError: there is no such line."""
    lines = text.split("\n")
    kept = [line for line in lines if name_of(line) != name]
    if len(kept) == len(lines):
        raise KeyError(name)
    return "\n".join(kept)


def _credential(written: str) -> Credential:
    """Parse the part of a line behind "name:". ValueError, with what would be right."""
    parts = written.split("$")
    if len(parts) == 5 and parts[:2] == ["", "7"]:
        iterations = int(parts[2]) if parts[2].isascii() and parts[2].isdigit() and len(parts[2]) < 10 else 0
        if not 1 <= iterations <= MOST_ITERATIONS:
            raise ValueError(f"{parts[2]!r} iterations: it must be a whole number from 1 to {MOST_ITERATIONS}")
        return Credential(iterations, _decoded(parts[3]), _decoded_hash(parts[4]))
    if len(parts) == 4 and parts[:2] == ["", "6"]:
        return Credential(0, _decoded(parts[2]), _decoded_hash(parts[3]))
    raise ValueError(f"not a password hash that Weir knows (plain passwords are not accepted): {FORM}")


def _decoded_hash(text: str) -> bytes:
    hashed = _decoded(text)
    if len(hashed) != HASH_BYTES:
        raise ValueError(f"a hash of {len(hashed)} bytes: it must have {HASH_BYTES}")
    return hashed


def _decoded(text: str) -> bytes:
    try:
        raw = binascii.a2b_base64(text.encode(), strict_mode=True)
    except ValueError:
        raw = b""
    if not raw:
        raise ValueError(f"salt or hash is no base64: {FORM}")
    return raw


def _base64(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).decode()


def _slow(password: bytes, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha512", password, salt, iterations)
