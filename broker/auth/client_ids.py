# The client ids that a user may have.
#
# A client id belongs to a user for as long as there is a session of that id: another user is refused, as it would
# disconnect the client, read its queue and get what the access rules grant to %c. Anonymous clients are one user of
# their own. A name that was verified by a password and the same name from a certificate are the same user, as they are
# for the access rules. `access.exclusive_client_ids = false` lets every user take over every session.
#
# An id without a session belongs to nobody, unless a rule says which ids a user may have (broker/config/client_ids.py).
from broker.config.client_ids import ClientIdRule
from broker.session.principal import ANYBODY, owner_tag


class ClientIds:
    def __init__(self, rule: str, exclusive: bool) -> None:
        """*exclusive*: a client id belongs to the user of its session."""
        self._rule = ClientIdRule(rule) if rule else None
        self._exclusive = exclusive

    def allows(self, client_id: str, user: str | None) -> bool:
        """Whether *user* may have *client_id*; None is an anonymous client, to which a rule allows nothing."""
        return self._rule is None or (user is not None and self._rule.allows(client_id, user))

    def assigned(self, user: str | None, random: str) -> str:
        """An id for a client of *user* that has none."""
        return random if self._rule is None or user is None else self._rule.assigned(user, random)

    def owner(self, user: str | None) -> str:
        """The tag with which *user* claims a session."""
        return owner_tag(None if user is None else user.encode()) if self._exclusive else ANYBODY
