# The folder of a node: its locks, its owner, and what a killed supervisor leaves in it.
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.folder import FolderError, NodeFolder, base_folder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[NodeFolder]:
    """One that is taken."""
    taken = NodeFolder("one", str(tmp_path / "one"))
    taken.take()
    yield taken
    taken.release()


def test_the_folder_is_for_its_user_alone(folder: NodeFolder) -> None:
    """Other users could read the data, or stop the node."""
    parts = [folder.path, folder.run, folder.log.parent, folder.path / "redis"]

    assert [0o700] * 4 == [part.stat().st_mode & 0o777 for part in parts]


def test_a_second_start_is_refused_and_names_the_process(folder: NodeFolder) -> None:
    """Two supervisors would share one folder."""
    with pytest.raises(FolderError) as refused:
        NodeFolder("one", str(folder.path)).take()

    assert f"runs already (process {os.getpid()})" in str(refused.value)
    assert os.getpid() == folder.running()


def test_a_released_folder_can_be_taken_again(folder: NodeFolder) -> None:
    """A node could be started only once."""
    folder.release()
    assert None is folder.running()

    folder.take()

    assert os.getpid() == folder.running()


def test_another_nodes_folder_is_refused_and_stays_as_it_was(folder: NodeFolder) -> None:
    """A misspelt folder would mix the data of two nodes."""
    folder.release()

    with pytest.raises(FolderError, match="belongs to the node one"):
        NodeFolder("two", str(folder.path)).take()

    assert "one\n" == (folder.path / "node").read_text()
    folder.take()


def test_a_folder_with_other_files_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    """`node.folder = "/home/me"` would change the mode of a home folder and fill it with files of Weir."""
    tmp_path.chmod(0o755)
    (tmp_path / "letters").mkdir()

    with pytest.raises(FolderError, match="not empty and belongs to no node"):
        NodeFolder("one", str(tmp_path)).take()

    assert ["letters"] == [one.name for one in tmp_path.iterdir()]
    assert 0o755 == tmp_path.stat().st_mode & 0o777


def test_a_file_in_its_place_is_one_sentence(tmp_path: Path) -> None:
    """The user would see a traceback."""
    file = tmp_path / "file"
    file.touch()

    with pytest.raises(FolderError, match=f"Cannot use the folder {file}"):
        NodeFolder("one", str(file)).take()


def test_a_name_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    """The node would start, and fail later with an error of the kernel."""
    with pytest.raises(FolderError, match="is too long for the sockets in it"):
        NodeFolder("one", str(tmp_path / ("n" * 100))).take()


def test_a_path_that_is_not_utf8_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """Files of the embedded Redis and log lines have the path: the start would end in a traceback."""
    strange = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")

    with pytest.raises(FolderError, match=r"caf\\xe9' is not UTF-8: set node.folder to another one"):
        NodeFolder("one", strange).take()

    assert not os.path.exists(strange)


def test_sockets_of_a_dead_supervisor_are_removed(folder: NodeFolder) -> None:
    """A kill -9 would keep the node from ever starting again."""
    folder.release()
    left = [folder.control, folder.run / "worker-0.sock"]
    for path in left:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))

    folder.take()

    assert [False, False] == [path.exists() for path in left]


HOLDER = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_processes_of_a_dead_supervisor_are_waited_for(folder: NodeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start right after a kill -9 would find its ports in use by workers that are about to end."""
    folder.release()
    command = [sys.executable, "-c", HOLDER, str(folder.run / "alive")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        assert b"held\n" == worker.stdout.readline()
        monkeypatch.setattr("supervisor.folder.DYING", 0.05)
        with pytest.raises(FolderError, match="still use the folder"):
            folder.take()
        monkeypatch.setattr("supervisor.folder.DYING", 10.0)
        worker.stdin.close()  # it ends while we wait

        folder.take()


def test_the_default_place_of_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users would need root to start a node, or commands would not find the nodes."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert Path("/var/lib/weir") == base_folder()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert Path("/state/weir") == base_folder()
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert Path("/home/me/.local/state/weir") == base_folder()


def test_the_socket_of_another_node_in_the_same_place_stays(folder: NodeFolder) -> None:
    """The end of a node whose folder was removed would remove the socket of its successor there."""
    shutil.rmtree(folder.path)
    other = NodeFolder("one", str(folder.path))
    other.take()
    other.control.touch()

    folder.release()
    assert other.control.exists()

    other.release()
    assert not other.control.exists()
    folder.take()


def test_the_options_name_the_node(tmp_path: Path) -> None:
    """The command that an error recommends would not find the node."""
    assert "--name one" == NodeFolder("one").options
    assert f"--folder '{tmp_path}/a node'" == NodeFolder("one", str(tmp_path / "a node")).options


def test_a_folder_that_others_could_write_to_is_refused(folder: NodeFolder) -> None:
    """Another user could have the node write to any file, by a link that waits there."""
    folder.release()
    folder.path.chmod(0o770)

    with pytest.raises(FolderError, match="Other users can write to the folder"):
        folder.take()

    folder.path.chmod(0o700)
    folder.take()


def test_an_empty_folder_that_others_can_write_to_is_closed_to_them(tmp_path: Path) -> None:
    """A new volume, which everybody may write to, could not be used."""
    tmp_path.chmod(0o777)
    node = NodeFolder("one", str(tmp_path))

    node.take()
    node.release()
    assert 0o700 == tmp_path.stat().st_mode & 0o777


@pytest.mark.parametrize("file", ["lock", "node", "run/alive", "log/weir.log"])
def test_a_link_in_the_place_of_a_file_is_refused(folder: NodeFolder, tmp_path: Path, file: str) -> None:
    """The node would empty, lock or fill a file elsewhere."""
    folder.release()
    other = tmp_path / "other"
    other.write_text("mine\n")
    (folder.path / file).unlink(missing_ok=True)
    (folder.path / file).symlink_to(other)

    with pytest.raises(FolderError, match=f"{file} is a symbolic link"):
        folder.take()

    assert "mine\n" == other.read_text()
    (folder.path / file).unlink()
    (folder.path / "node").write_text("one\n")
    folder.take()


def test_the_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root would start a node in a folder whose owner can replace every file."""
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    with pytest.raises(FolderError, match=r"belongs to the user .*, and this process runs as"):
        NodeFolder("one", str(tmp_path)).take()


def test_a_link_to_a_disk_of_the_same_user_may_be_used(tmp_path: Path) -> None:
    """A node whose data is on another disk could not start any more."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "one").symlink_to(tmp_path / "disk")
    node = NodeFolder("one", str(tmp_path / "one"))

    node.take()
    node.release()
    assert (tmp_path / "disk" / "lock").is_file()
