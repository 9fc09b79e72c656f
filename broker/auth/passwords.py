# Passwords, in the formats of mosquitto_passwd. A line is one of these; salt and hash are base64:
# - name:$7$iterations$salt$hash: PBKDF2 with HMAC-SHA512. `weir passwd` writes these.
# - name:$argon2id$v=19$m=KiB,t=passes,p=lanes$salt$hash: Argon2id (RFC 9106), what Mosquitto 2.1 writes.
# - name:$6$salt$hash: SHA-512 of the password and the salt, of Mosquitto before 2.0.
#
# The answers tell an attacker whether a pair of name and password is right, and nothing else. So a name that is not in
# the file costs as much hashing as one that is, and every check costs as much as the most expensive line of the file: a
# fast answer would otherwise mean "this name exists, and its password is weakly hashed". In a file with PBKDF2 and
# Argon2id a check costs the most expensive line of each.
#
# Hashing is slow on purpose, and a fleet that reconnects after a power cut would pay it ten thousand times. So a
# verified password is remembered, as a digest with a key that only this process has; one digest for each user. The
# digests are as safe as the memory of the process, take as much memory as the file, and are forgotten when the file is
# read again.
import binascii
import hashlib
import hmac
import re
from typing import Final

from argon2 import low_level

from broker.auth.lines import BadLine

# What OWASP recommends (2023): 0.1 s of a core, so a fleet of 10 000 users takes 18 minutes.
ITERATIONS: Final = 210_000
MOST_ITERATIONS: Final = 10_000_000  # take seconds of a core for each attempt: a larger number is a mistake
SALT_BYTES: Final = 12  # Mosquitto 2.0 accepts no other size
HASH_BYTES: Final = 64
DIGEST_BYTES: Final = 32
LONGEST_NAME: Final = 65_535  # bytes; MQTT cannot carry a longer one

ARGON2_VERSION: Final = 19
MOST_ARGON2_MEMORY: Final = 256 * 1024  # KiB; each worker hashes one password at a time and needs it meanwhile
MOST_ARGON2_WORK: Final = 4 * 1024 * 1024  # KiB times passes: some seconds of a core
MOST_ARGON2_LANES: Final = 16
LEAST_LANE: Final = 8  # KiB of memory for each lane (RFC 9106, section 3.1)
ARGON2_SALT: Final = (8, 128)  # bytes, at least and at most
ARGON2_HASH: Final = (16, 128)

FORM: Final = "it must be name:$7$iterations$salt$hash, as `weir passwd` and mosquitto_passwd write it"
ARGON2_FORM: Final = "it must be name:$argon2id$v=19$m=KiB,t=passes,p=lanes$salt$hash, as mosquitto_passwd writes it"


class Argon2:
    """The parameters of Argon2id (RFC 9106, section 3.1)."""

    def __init__(self, memory: int, passes: int, lanes: int) -> None:
        self.memory = memory  # KiB
        self.passes = passes
        self.lanes = lanes
        self.work = memory * passes

    def same_as(self, other: "Argon2") -> bool:
        return self.memory == other.memory and self.passes == other.passes and self.lanes == other.lanes

    def hash(self, password: bytes, salt: bytes, size: int) -> bytes:
        """*size*: bytes of the result."""
        return low_level.hash_secret_raw(
            password, salt, self.passes, self.memory, self.lanes, size, low_level.Type.ID, ARGON2_VERSION
        )

    def spend(self, password: bytes, salt: bytes, work: int) -> None:
        """Do *work* in the memory and the lanes that these parameters name."""
        passes, rest = divmod(work, self.memory)
        for memory, times in ((self.memory, passes), (rest, 1)):
            if times and memory >= LEAST_LANE * self.lanes:
                Argon2(memory, times, self.lanes).hash(password, salt, HASH_BYTES)


NO_ARGON2: Final = Argon2(0, 0, 0)


class Credential:
    """The hash of one user's password: one line of the file."""

    def __init__(self, iterations: int, salt: bytes, hashed: bytes, argon2: Argon2 = NO_ARGON2) -> None:
        self.iterations = iterations  # of PBKDF2; 0: Argon2id or a single SHA-512
        self.argon2 = argon2
        self.salt = salt
        self.hashed = hashed
        self.verified = b""  # the keyed digest of the password, once it was verified

    def same_as(self, other: "Credential") -> bool:
        return (
            self.iterations == other.iterations
            and self.argon2.same_as(other.argon2)
            and self.salt == other.salt
            and self.hashed == other.hashed
        )

    def hash(self, password: bytes) -> bytes:
        if self.argon2.work:
            return self.argon2.hash(password, self.salt, len(self.hashed))
        if self.iterations:
            return _slow(password, self.salt, self.iterations)
        return hashlib.sha512(password + self.salt).digest()


class Cost:
    """What every check of a file costs: its most expensive lines."""

    def __init__(self, iterations: int, argon2: Argon2) -> None:
        self.iterations = iterations  # of PBKDF2
        self.argon2 = argon2


class Check:
    """The check of one password. It is called in another thread, so it uses nothing that changes."""

    def __init__(self, credential: Credential, password: bytes, cost: Cost) -> None:
        self.abandoned = False  # the result is not needed any more
        self.cost = cost
        self._credential = credential
        self._password = password

    def __call__(self) -> bool:
        if self.abandoned:
            return False
        credential, cost = self._credential, self.cost
        hashed = credential.hash(self._password)
        if credential.iterations < cost.iterations:
            _slow(self._password, credential.salt, cost.iterations - credential.iterations)
        if credential.argon2.work < cost.argon2.work:
            cost.argon2.spend(self._password, credential.salt, cost.argon2.work - credential.argon2.work)
        return hmac.compare_digest(hashed, credential.hashed)


class Passwords:
    """The users of a password file. *key*: random bytes of this process, secret and at most 64."""

    def __init__(self, users: dict[str, Credential], key: bytes) -> None:
        self._users = users
        self._key = key
        self._cost = Cost(
            max([credential.iterations for credential in users.values()], default=ITERATIONS),
            max(
                [credential.argon2 for credential in users.values()], key=lambda argon2: argon2.work, default=NO_ARGON2
            ),
        )
        # Stands for an unknown user. No password is known to have this hash.
        self._unknown = Credential(self._cost.iterations, key[:SALT_BYTES], bytes(HASH_BYTES))

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
    if parts[:2] == ["", "argon2id"]:
        return _argon2_credential(parts[2:])
    raise ValueError(f"not a password hash that Weir knows (plain passwords are not accepted): {FORM}")


def _argon2_credential(parts: list[str]) -> Credential:
    """Parse "v=19", "m=KiB,t=passes,p=lanes", salt and hash. ValueError, with what would be right."""
    numbers = re.fullmatch(r"m=(\d{1,7}),t=(\d{1,7}),p=(\d{1,7})", parts[1], re.ASCII) if len(parts) == 4 else None
    if numbers is None or parts[0] != f"v={ARGON2_VERSION}":
        raise ValueError(f"not a hash of Argon2id: {ARGON2_FORM}")
    argon2 = Argon2(int(numbers[1]), int(numbers[2]), int(numbers[3]))
    if not 1 <= argon2.lanes <= MOST_ARGON2_LANES:
        raise ValueError(f"p={argon2.lanes} lanes of Argon2id: it must be from 1 to {MOST_ARGON2_LANES}")
    if not LEAST_LANE * argon2.lanes <= argon2.memory <= MOST_ARGON2_MEMORY:
        raise ValueError(
            f"m={argon2.memory} KiB for Argon2id: it must be from {LEAST_LANE} KiB for each lane to "
            f"{MOST_ARGON2_MEMORY}"
        )
    if not 1 <= argon2.work <= MOST_ARGON2_WORK:
        raise ValueError(
            f"t={argon2.passes} passes of Argon2id over {argon2.memory} KiB: it must be from 1 to "
            f"{MOST_ARGON2_WORK // argon2.memory}"
        )
    salt, hashed = _decoded(_padded(parts[2])), _decoded(_padded(parts[3]))
    for what, raw, (least, most) in (("salt", salt, ARGON2_SALT), ("hash", hashed, ARGON2_HASH)):
        if not least <= len(raw) <= most:
            raise ValueError(f"a {what} of Argon2id with {len(raw)} bytes: it must have {least} to {most}")
    return Credential(0, salt, hashed, argon2)


def _padded(text: str) -> str:
    """Argon2 writes base64 without padding."""
    return text + "=" * (-len(text) % 4)


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
