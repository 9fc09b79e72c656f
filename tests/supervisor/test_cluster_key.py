# The key of the cluster: where it comes from.
import stat
from pathlib import Path

import pytest

from supervisor.cluster_key import cluster_key
from supervisor.redis_server import RedisUnusable


def test_a_private_server_has_a_key_that_stays(tmp_path: Path) -> None:
    """Wills that a killed node has left could not be published after its next start."""
    key = cluster_key("", "", tmp_path)

    assert 64 == len(key)
    assert key == cluster_key("", "", tmp_path) != cluster_key("", "", tmp_path.parent)
    assert 0o600 == stat.S_IMODE((tmp_path / "cluster.key").stat().st_mode)
    (tmp_path.parent / "cluster.key").unlink()


def test_nodes_of_a_cluster_share_a_file(tmp_path: Path) -> None:
    """A node would ignore the reports and wills of all others."""
    file = tmp_path / "key"
    file.write_text("k" * 32 + "\n")

    assert b"k" * 32 == cluster_key(str(file), "redis://host", tmp_path) == cluster_key(str(file), "", tmp_path)
    assert b"" == cluster_key("", "redis://host", tmp_path)


@pytest.mark.parametrize(("text", "why"), [(None, "No such file"), ("", "0 characters"), ("short", "5 characters")])
def test_a_file_that_is_no_key_is_refused(tmp_path: Path, text: str | None, why: str) -> None:
    """Seals of an empty key could be made by anybody."""
    file = tmp_path / "key"
    if text is not None:
        file.write_text(text)

    with pytest.raises(RedisUnusable, match=why):
        cluster_key(str(file), "redis://host", tmp_path)
