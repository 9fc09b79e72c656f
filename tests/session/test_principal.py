from broker.session.principal import Principal


def test_only_both_names_make_it_the_same() -> None:
    """A decision for one client would be taken for another's, or every decision be taken again."""
    one = Principal("client", "user", 1)
    others = [Principal("client", "user", 2), Principal("other", "user", 1), Principal("client", None, 1)]

    assert [True, False, False] == [one.acts_for(other) for other in others]
