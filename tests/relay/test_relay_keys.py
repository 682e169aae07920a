"""The run's key: where it comes from, who may read it, what it derives."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from traceml.monitor.relay.access import (
    KEY_FILE,
    KeyProblem,
    RunKey,
    create_key,
    find_key,
    publish,
    read_published,
    withdraw,
)

SECRET = "a secret that is long enough"
HOSTILE = '{"schema": "traceml.relay/2", "hosts": ["a/b;c"], "port": 1, "public_key": ""}'


def test_key_file_is_made_once_and_for_the_owner_only(tmp_path: Path) -> None:
    """The first to come makes the key file, mode 0600; all get the same key; no other file stays."""
    found: list[bytes] = []
    makers = [
        threading.Thread(target=lambda: found.append(create_key(tmp_path, {}).server().public))
        for _ in range(8)
    ]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    key = find_key(tmp_path, {})
    assert key is not None
    assert set(found) == {key.server().public}
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == [KEY_FILE]


def test_variable_wins_and_writes_no_file(tmp_path: Path) -> None:
    """With TRACEML_KEY nothing is written to the folder."""
    key = create_key(tmp_path, {"TRACEML_KEY": SECRET})
    assert key.server() == RunKey(SECRET.encode()).server()
    assert list(tmp_path.iterdir()) == []


def test_each_node_has_its_own_pair() -> None:
    """Every node has its own pair: the same on every host, and a different one for a different secret."""
    key, other = RunKey(SECRET.encode()), RunKey(b"another secret of this length")
    pairs = [key.server(), key.client(1), key.client(2), other.server(), other.client(1)]
    assert len({p.public for p in pairs}) == len({p.secret for p in pairs}) == 5
    assert RunKey(SECRET.encode()).client(2) == pairs[2]


@pytest.mark.parametrize("secret", ["", "short", "x" * 5000])
def test_secrets_of_unusable_length(secret: str) -> None:
    """A key that is too short or too long is refused with its length."""
    with pytest.raises(KeyProblem, match="bytes"):
        RunKey(secret.encode())


def test_key_that_others_may_read(tmp_path: Path) -> None:
    """A key file that others may read, or that is a link, is not used."""
    create_key(tmp_path, {})
    (tmp_path / KEY_FILE).chmod(0o644)
    with pytest.raises(KeyProblem, match="0600"):
        find_key(tmp_path, {})
    (tmp_path / KEY_FILE).rename(tmp_path / "elsewhere")
    (tmp_path / KEY_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyProblem, match="cannot be read"):
        find_key(tmp_path, {})
    assert find_key(tmp_path / "nowhere", {}) is None


def test_published_address(tmp_path: Path) -> None:
    """What node 0 publishes is found, tried in order, and withdrawn; invalid content is ignored."""
    public = RunKey(SECRET.encode()).server().public
    publish(tmp_path, "head.example", ["*"], 4000, public)
    found = read_published(tmp_path)
    assert found is not None
    assert found.endpoints()[0] == "tcp://head.example:4000"
    withdraw(tmp_path, 4001)
    assert read_published(tmp_path) is not None
    withdraw(tmp_path, 4000)
    assert read_published(tmp_path) is None
    for text in ("", "[]", "{}", '{"schema": "traceml.relay/2", "hosts": [1], "port": 1}', HOSTILE):
        (tmp_path / "relay.json").write_text(text)
        assert read_published(tmp_path) is None
