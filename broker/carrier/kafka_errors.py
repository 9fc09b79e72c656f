# What errors of kafka-python mean.
from typing import Final

from kafka import errors

from broker.reasons import LogFailure
from broker.store.logs.topics import LogError

# The first class that an exception is an instance of counts.
FAILURES: Final = (
    (errors.MessageSizeTooLargeError, LogFailure.TOO_LARGE),
    (errors.RecordListTooLargeError, LogFailure.TOO_LARGE),
    (errors.UnknownTopicOrPartitionError, LogFailure.UNKNOWN_TOPIC),
    (errors.UnknownTopicIdError, LogFailure.UNKNOWN_TOPIC),
    (errors.InconsistentTopicIdError, LogFailure.UNKNOWN_TOPIC),
    (errors.AuthorizationError, LogFailure.FORBIDDEN),
    (errors.TopicDeletionDisabledError, LogFailure.FORBIDDEN),
    (errors.SaslAuthenticationFailedError, LogFailure.AUTHENTICATION_FAILED),
    (errors.NotEnoughReplicasError, LogFailure.TOO_FEW_REPLICAS),
    (errors.NotEnoughReplicasAfterAppendError, LogFailure.TOO_FEW_REPLICAS),
    (errors.InvalidReplicationFactorError, LogFailure.TOO_FEW_REPLICAS),
    (errors.KafkaStorageError, LogFailure.CANNOT_STORE),
    (errors.KafkaConnectionError, LogFailure.UNREACHABLE),
    (errors.NodeNotReadyError, LogFailure.UNREACHABLE),
    (errors.LeaderNotAvailableError, LogFailure.NO_LEADER),
    (errors.NotLeaderForPartitionError, LogFailure.NO_LEADER),
    (errors.ReplicaNotAvailableError, LogFailure.NO_LEADER),
    (errors.OffsetNotAvailableError, LogFailure.NO_LEADER),
    (errors.FencedLeaderEpochError, LogFailure.NO_LEADER),
    (errors.UnknownLeaderEpochError, LogFailure.NO_LEADER),
    (errors.UnknownBrokerIdError, LogFailure.NO_LEADER),
    (errors.KafkaTimeoutError, LogFailure.TIMEOUT),
    (errors.RequestTimedOutError, LogFailure.TIMEOUT),
    (errors.KafkaConfigurationError, LogFailure.CLIENT_REFUSED),
)


def error_of(exception: BaseException) -> LogError:
    """*exception* of kafka-python, as the log tells it."""
    for kind, failure in FAILURES:
        if isinstance(exception, kind):
            return LogError(failure, detail_of(exception))
    return LogError(LogFailure.REFUSED, detail_of(exception))


def detail_of(exception: BaseException) -> str:
    words = next((str(word) for word in exception.args if word), "")
    return f"{type(exception).__name__}: {words}" if words else type(exception).__name__
