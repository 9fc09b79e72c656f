class Subscriber:
    """What stands behind a topic filter: one client's subscription, or the group of a shared one."""

    share: bytes  # its share name, b"" if it is not shared
    filter: bytes  # without $share/name/
