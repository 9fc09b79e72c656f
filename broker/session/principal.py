from typing import Final


class Principal:
    """The identity that a session acts for. Access rules decide by client id and user name."""

    def __init__(self, client_id: str, user: str | None, judged: int) -> None:
        self.client_id = client_id.encode()
        self.user = None if user is None else user.encode()  # verified; None for an anonymous client
        self.judged = judged  # the Authoriser.generation whose rules were asked last

    def acts_for(self, other: "Principal") -> bool:
        """Whether no access rule can tell the two apart."""
        return self.client_id == other.client_id and self.user == other.user


NOBODY: Final = Principal("", None, 0)
