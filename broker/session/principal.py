# Whom a session belongs to and acts for.
#
# Where sessions are claimed, a tag stands for the user: it has at most TAG_BYTES whatever the name is, and Redis does
# not show the name. 96 bits of a hash: nobody can choose a second name with the tag of a user.
import base64
import hashlib
from typing import Final

ANYBODY: Final = "*"  # the tag of a claim that may have the session of any user
ANONYMOUS: Final = "-"  # the tag of clients without a verified user
TAG_BYTES: Final = 16
UNJUDGED: Final = -1  # the generation of no access rules: they are asked when the client connects


class Principal:
    """The identity that a session acts for. Access rules decide by client id and user name."""

    def __init__(self, client_id: str, user: str | None, judged: int) -> None:
        self.client_id = client_id.encode()
        self.user = None if user is None else user.encode()  # verified; None for an anonymous client
        self.judged = judged  # the Authoriser.generation whose rules were asked last

    def acts_for(self, other: "Principal") -> bool:
        """Whether no access rule can tell the two apart."""
        return self.client_id == other.client_id and self.user == other.user

    def owner(self) -> str:
        """The tag of the user to whom the session belongs."""
        return owner_tag(self.user)


def owner_tag(user: bytes | None) -> str:
    if user is None:
        return ANONYMOUS
    return base64.urlsafe_b64encode(hashlib.blake2b(user, digest_size=TAG_BYTES * 6 // 8).digest()).decode()


def may_have(claimant: str, owner: str) -> bool:
    """Whether a claim with the tag *claimant* may have a session with the tag *owner*."""
    return claimant in (owner, ANYBODY) or owner == ANYBODY


NOBODY: Final = Principal("", None, 0)
