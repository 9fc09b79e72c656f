# What operators are told of the logs of filters that an APPLICATION client shares.
from broker.insight.facts import SharedLogFacts
from broker.session.session import Session
from broker.store.durable.shared_logs import DurableSharedLogs
from broker.store.durable.shared_readers import GroupMember
from broker.store.durable.store import DurableStore


def members_of(durable: DurableStore | None, session: Session) -> list[GroupMember]:
    """The memberships of *session* in groups of APPLICATION clients."""
    logs = None if durable is None else durable.shared_logs
    return logs.members_of(session) if isinstance(logs, DurableSharedLogs) else []


def shared_logs_of(durable: DurableStore | None, session: Session) -> list[SharedLogFacts]:
    return [shared_log_of(member) for member in members_of(durable, session)]


def shared_log_of(member: GroupMember) -> SharedLogFacts:
    """The log that *member* shares."""
    group = member.group
    leases = member.queue.leases.of_group(group.digest)
    troubles = [trouble for lease in leases if (trouble := lease.trouble())]
    return {
        "name": member.subscription.share.decode(errors="replace"),
        "filter": member.subscription.filter.decode(errors="replace"),
        "topic": group.topic.name,
        "partitions": group.topic.partitions,
        "reads": sorted(lease.partition for lease in leases),
        "waits": group.waits(member),
        "trouble": group.topic.trouble or (troubles[0] if troubles else ""),
    }
