# The matching rules of MQTT 4.7 in their plainest form, and names to try them on.
from hypothesis import strategies as st


def matches(filter: bytes, topic: bytes) -> bool:
    if topic.startswith(b"$") and filter[:1] in (b"+", b"#"):  # [MQTT-4.7.2-1]
        return False
    wanted, levels = filter.split(b"/"), topic.split(b"/")
    if wanted[-1] == b"#":
        wanted.pop()
        levels = levels[: len(wanted)]
    return len(wanted) == len(levels) and all(w in (b"+", level) for w, level in zip(wanted, levels, strict=True))


# Few and short names, so that they meet often; empty levels and "$" among them.
names = st.sampled_from([b"", b"a", b"b", b"$a"])


def _is_name(name: bytes) -> bool:
    return name != b""  # [MQTT-4.7.3-1]


topics = st.lists(names, min_size=1, max_size=4).map(b"/".join).filter(_is_name)
filters = (
    st.tuples(st.lists(names | st.just(b"+"), max_size=4), st.sampled_from([[], [b"#"]]))
    .map(lambda parts: b"/".join(parts[0] + parts[1]))
    .filter(_is_name)
)
