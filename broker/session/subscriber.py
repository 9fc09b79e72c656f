class Subscriber:
    """What stands behind a topic filter: one client's subscription, or the group of a shared one."""
