"""The sending side's bookkeeping, without a network."""

from __future__ import annotations

from pathlib import Path

from relay_nodes import Rank

from traceml.collect.relay.outbox import LATER_S, Outbox
from traceml.collect.relay.protocol import Answer, AnyRequest, Open, Put, Status
from traceml.collect.relay.store import check_before


def answer(request: AnyRequest, status: Status, offset: int = 0, check: bytes = b"") -> Answer:
    """What node 0 says to this."""
    return Answer(
        client=request.client,
        connection=request.connection,
        ticket=request.ticket,
        status=status,
        offset=offset,
        check=check,
    )


def opened(node1: Path, rows: int, window_bytes: int) -> tuple[Outbox, Rank]:
    """An outbox whose one file node 0 knows and has nothing of."""
    rank = Rank(node1, 0)
    rank.append(rows)
    outbox = Outbox(node1, client=1, window_bytes=window_bytes)
    outbox.look()
    (first,) = outbox.messages(0.0)
    assert isinstance(first, Open)
    check = check_before(Path(rank.writer.path), 32, 0)
    outbox.take(answer(first, Status.OK, 0, check), 0.0)
    return outbox, rank


def test_window_bounds_what_is_under_way(node1: Path) -> None:
    """However long the backlog, no more than the window is sent without an answer."""
    outbox, _ = opened(node1, 50_000, window_bytes=100_000)
    puts = [m for m in outbox.messages(0.0) if isinstance(m, Put)]
    assert 100_000 - 32 <= sum(len(p.data) for p in puts) <= 100_000 + 4096
    assert list(outbox.messages(0.0)) == []
    outbox.take(answer(puts[0], Status.OK, len(puts[0].data) // 32), 0.0)
    assert outbox.has_room


def test_a_full_disk_on_node0_is_waited_out(node1: Path) -> None:
    """Told to come later, the file is asked for again; answers from before do not confuse it."""
    outbox, rank = opened(node1, 6000, window_bytes=150_000)
    sending = outbox.messages(0.0)
    puts = [next(sending) for _ in range(1)]
    rank.append(1)
    puts += [m for m in outbox.messages(0.0) if isinstance(m, Put)]
    assert len(puts) == 2
    outbox.take(answer(puts[0], Status.LATER), 1.0)
    outbox.take(answer(puts[1], Status.OK, 0), 1.0)
    assert not outbox.given_up
    assert list(outbox.messages(1.0)) == []
    (again,) = outbox.messages(1.0 + LATER_S)
    assert isinstance(again, Open)


def test_files_take_turns(node1: Path) -> None:
    """A long backlog of one rank does not keep another rank's rows waiting."""
    outbox, _ = opened(node1, 100_000, window_bytes=300_000)
    late = Rank(node1, 1)
    late.append(5)
    outbox.look()
    names = {m.name for m in outbox.messages(0.0) if isinstance(m, Open | Put)}
    assert late.name in names


def test_a_file_that_vanishes(node1: Path) -> None:
    """A file that is removed under the relay is given up with a reason; the rest goes on."""
    outbox, rank = opened(node1, 10, window_bytes=300_000)
    other = Rank(node1, 1)
    Path(rank.writer.path).unlink()
    outbox.look()
    assert not outbox.all_there()
    assert [m.name for m in outbox.messages(0.0) if isinstance(m, Open)] == [other.name]
    assert list(outbox.given_up) == [rank.name]
