# Bytes of memory that subscriptions and filters take; tests/routing/test_memory.py compares them with the allocator.
# Objects of interpreted code are larger.
from typing import Final

from broker.version import form

COMPILED: Final = form() == "compiled"

SUBSCRIPTION: Final = 125 if COMPILED else 173  # and its place in its session
SUBSCRIBER: Final = 180  # a session with a subscription, beside one without
MEMBER: Final = 218 if COMPILED else 282  # a subscription that is shared, beside one that is not
GROUP: Final = 670 if COMPILED else 805  # of a shared subscription, beside its names, its filter and its members
FILTER: Final = 75  # beside its text
ROUTE: Final = 462 if COMPILED else 582  # the receivers of a topic, beside its text and the receivers
RETAINED: Final = 340 if COMPILED else 420  # a retained message beside its parts and the levels of its topic
LEVEL: Final = 112 if COMPILED else 152  # in a tree, beside its name
NAME: Final = 33  # of a level, beside its text; Python has the names of one character anyway
CROWD: Final = 120  # the container of the subscribers of a filter that has several
ENTRY: Final = 70  # a subscriber in it
