# Hypothesis strategies for every valid packet of each version, as the wire can carry it.
#
# "As the wire can carry it": no properties before 5.0, no session present in 3.1, and so on; so that decoding
# what encode() made gives back an equal packet.
from hypothesis import strategies as st

from broker.mqtt.codes import allowed_codes
from broker.mqtt.packets import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    V5,
    V31,
    V311,
    Ack,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PropertyValue,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Wanted,
    Will,
)
from broker.mqtt.properties import (
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    BINARY,
    FLAG,
    MAXIMUM_PACKET_SIZE,
    PAIRS,
    PROPERTIES,
    RECEIVE_MAXIMUM,
    RESPONSE_TOPIC,
    STRING,
    TOPIC_ALIAS,
    UINT16,
    UINT32,
    VARINTS,
    WILL,
)

VERSIONS = [V31, V311, V5]

characters = st.characters(codec="utf-8", exclude_characters="\0")
texts = st.text(characters, max_size=12)
blobs = st.binary(max_size=24)
packet_ids = st.integers(1, 0xFFFF)
qos_levels = st.integers(0, 2)

topics = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=16).map(str.encode)
levels = st.text(st.characters(codec="utf-8", exclude_characters="\0+#/"), max_size=5) | st.just("+")


@st.composite
def filters(draw: st.DrawFn) -> bytes:
    """Valid topic filters, shared ones among them."""
    wanted = draw(st.lists(levels, min_size=1, max_size=4))
    if draw(st.booleans()):
        wanted.append("#")
    filter = "/".join(wanted) or "+"
    if draw(st.booleans()):
        name = draw(st.text(st.characters(codec="utf-8", exclude_characters="\0+#/"), min_size=1, max_size=5))
        filter = f"$share/{name}/{filter}"
    elif filter.startswith("$share/"):
        filter = "/" + filter
    return filter.encode()


def _values(identifier: int, packet_type: int) -> st.SearchStrategy[PropertyValue]:
    """What the property may hold in that packet."""
    wire = PROPERTIES[identifier][0]
    least = 1 if identifier in (RECEIVE_MAXIMUM, MAXIMUM_PACKET_SIZE, TOPIC_ALIAS) else 0
    if identifier == RESPONSE_TOPIC:
        return topics.map(bytes.decode)
    if wire == VARINTS:
        most = 1 if packet_type == SUBSCRIBE else 3
        return st.lists(st.integers(1, 0xFFFFFFF), min_size=1, max_size=most)
    by_type: dict[int, st.SearchStrategy[PropertyValue]] = {
        FLAG: st.integers(0, 1),
        UINT16: st.integers(least, 0xFFFF),
        UINT32: st.integers(least, 0xFFFFFFFF),
        STRING: texts,
        BINARY: blobs,
        PAIRS: st.lists(st.tuples(texts, texts), min_size=1, max_size=3),
    }
    return by_type[wire]


def _with_method(properties: Properties) -> Properties:
    if AUTHENTICATION_DATA in properties:
        properties.setdefault(AUTHENTICATION_METHOD, "SCRAM-SHA-256")
    return properties


def properties(packet_type: int, version: int = V5) -> st.SearchStrategy[Properties]:
    """Properties allowed in a packet of that type (or WILL); none before 5.0."""
    if version != V5:
        return st.just({})
    allowed = {each: _values(each, packet_type) for each, (_, packets) in PROPERTIES.items() if packet_type in packets}
    return st.fixed_dictionaries({}, optional=allowed).map(_with_method)


def wills(version: int) -> st.SearchStrategy[Will]:
    return st.builds(Will, topics, blobs, qos_levels, st.booleans(), properties(WILL, version))


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    clean_start = draw(st.booleans())
    anonymous = version == V5 or (version == V311 and clean_start)
    client_id = draw(st.text(characters, min_size=0 if anonymous else 1, max_size=30))
    user_name = draw(st.none() | texts)
    password = draw(st.none() | blobs) if version == V5 or user_name is not None else None
    return Connect(
        version,
        client_id,
        clean_start,
        draw(st.integers(0, 0xFFFF)),
        user_name,
        password,
        draw(st.none() | wills(version)),
        draw(properties(CONNECT, version)),
    )


@st.composite
def connacks(draw: st.DrawFn, version: int) -> ConnAck:
    code = draw(codes(CONNACK, version))
    present = draw(st.booleans()) if code == 0 and version != V31 else False
    return ConnAck(present, code, draw(properties(CONNACK, version)))


@st.composite
def publishes(draw: st.DrawFn, version: int) -> Publish:
    qos = draw(qos_levels)
    described = draw(properties(PUBLISH, version))
    return Publish(
        draw(topics | st.just(b"") if TOPIC_ALIAS in described else topics),
        draw(blobs),
        qos,
        draw(st.booleans()),
        draw(st.booleans()) if qos > 0 else False,
        draw(packet_ids) if qos > 0 else 0,
        described,
    )


def codes(kind: int, version: int) -> st.SearchStrategy[int]:
    return st.sampled_from(sorted(allowed_codes(kind, version)))


@st.composite
def acks(draw: st.DrawFn, version: int) -> Ack:
    kind = draw(st.sampled_from([PUBACK, PUBREC, PUBREL, PUBCOMP]))
    code = draw(codes(kind, version)) if version == V5 else 0
    return Ack(kind, draw(packet_ids), code, draw(properties(kind, version)))


@st.composite
def wanted_filters(draw: st.DrawFn, version: int) -> Wanted:
    filter = draw(filters())
    if version != V5:
        return Wanted(filter, draw(qos_levels))
    no_local = False if filter.startswith(b"$share/") else draw(st.booleans())
    return Wanted(filter, draw(qos_levels), no_local, draw(st.booleans()), draw(st.integers(0, 2)))


def subscribes(version: int) -> st.SearchStrategy[Subscribe]:
    wanted = st.lists(wanted_filters(version), min_size=1, max_size=3)
    return st.builds(Subscribe, packet_ids, wanted, properties(SUBSCRIBE, version))


def subacks(version: int) -> st.SearchStrategy[SubAck]:
    answers = st.lists(codes(SUBACK, version), min_size=1, max_size=3)
    return st.builds(SubAck, packet_ids, answers, properties(SUBACK, version))


def unsubscribes(version: int) -> st.SearchStrategy[Unsubscribe]:
    unwanted = st.lists(filters(), min_size=1, max_size=3)
    return st.builds(Unsubscribe, packet_ids, unwanted, properties(UNSUBSCRIBE, version))


def unsubacks(version: int) -> st.SearchStrategy[UnsubAck]:
    if version != V5:
        return st.builds(UnsubAck, packet_ids, st.just([]))
    answers = st.lists(codes(UNSUBACK, version), min_size=1, max_size=3)
    return st.builds(UnsubAck, packet_ids, answers, properties(UNSUBACK))


def disconnects(version: int) -> st.SearchStrategy[Disconnect]:
    if version != V5:
        return st.just(Disconnect())
    return st.builds(Disconnect, codes(DISCONNECT, version), properties(DISCONNECT))


@st.composite
def auths(draw: st.DrawFn) -> Auth:
    code = draw(codes(AUTH, V5))
    described = draw(properties(AUTH))
    if code or described:
        described.setdefault(AUTHENTICATION_METHOD, "SCRAM-SHA-256")
    return Auth(code, described)


def packets(version: int) -> st.SearchStrategy[Packet]:
    """Every valid packet of that version, CONNECT and both directions included."""
    kinds: list[st.SearchStrategy[Packet]] = [
        connects(version),
        connacks(version),
        publishes(version),
        acks(version),
        subscribes(version),
        subacks(version),
        unsubscribes(version),
        unsubacks(version),
        st.builds(PingReq),
        st.builds(PingResp),
        disconnects(version),
    ]
    if version == V5:
        kinds.append(auths())
    return st.one_of(kinds)
