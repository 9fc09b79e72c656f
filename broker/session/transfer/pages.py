# The form of a session that moves from one worker to another: a row of pages, sent in chunks.
#
#   HEAD          client id, expiry, packet ids, will; whether it is durable, and of an APPLICATION client
#   SUBSCRIPTIONS UNACKNOWLEDGED WAITING    any number of pages of each, in this order
#   HELD          the end of what the session held when the transfer began: its subscriptions may be registered at the
#                 new worker, so that no message is missed when they leave the former worker
#   WAITING       messages that were routed to the former worker since; they go before those delivered at the new one
#   END           nothing follows; with the gap that the client has not been told of (session/gap.py)
#
# Each page is a msgpack array. A chunk is at most CHUNK bytes of one page; only a message that is larger needs several
# chunks. CLOCK_MONOTONIC is the same for all processes of a machine, so times are sent as they are. What belongs to the
# connection is not sent: window, topic aliases, maximum packet size, and which of the QoS 2 ids came over it.
#
# A durable session brings no messages: they are stored. END has what its new worker needs beside what is stored, as
# soon as that worker owns it in the store.
#
# Retained messages that are still owed are sent as a mark on their subscription, and their replay begins anew. So
# some may be delivered twice, each as a publish of its own: they must be sent [MQTT-3.3.1-9], no rule says only once,
# and they are no part of a session (4.1). The principal is sent without the verdicts about it, because each worker
# counts the generations of its access rules by itself: the rules are asked again.
from typing import Final

FORMAT: Final = 1  # of the pages; a worker refuses any other number

HEAD: Final = 0
SUBSCRIPTIONS: Final = 1
UNACKNOWLEDGED: Final = 2
WAITING: Final = 3
HELD: Final = 4
END: Final = 5
KINDS: Final = 6

CHUNK: Final = 256 * 1024  # bytes
PAGE: Final = 256  # messages or subscriptions of a page: half a millisecond of work
PAGE_BYTES: Final = 128 * 1024  # of messages, after which a page is full
LARGEST: Final = 1 << 29  # bytes of a page: MQTT has no message that is larger than half of it
