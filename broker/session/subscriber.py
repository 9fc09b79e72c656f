class Subscriber:
    """A receiver that has a topic filter: the subscription of a session, a shared group, or another worker."""

    share: bytes  # the share name, b"" if the subscription is not shared
    filter: bytes  # without "$share/name/"
