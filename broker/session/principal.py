from typing import Final


class Principal:
    """Whom a session acts for: what it may publish and read is decided by these two names."""

    def __init__(self, client_id: str, user: str | None, judged: int) -> None:
        self.client_id = client_id.encode()
        self.user = None if user is None else user.encode()  # verified; None: anonymous
        self.judged = judged  # by the rules of which Authoriser.generation

    def acts_for(self, other: "Principal") -> bool:
        """Whether both are the same to any rule."""
        return self.client_id == other.client_id and self.user == other.user


NOBODY: Final = Principal("", None, 0)
