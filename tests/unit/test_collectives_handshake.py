"""Two ranks prove membership to each other; nobody else can."""

from __future__ import annotations

import pytest

from openclaw_tasks.collectives.handshake import (
    AcceptorHandshake,
    DialerHandshake,
    HandshakeRefusedError,
    Seat,
)

TOKEN = b"the token of the run"
SEAT = Seat(generation=9, world_size=4, dialer=3, acceptor=1)


def acceptor(token: bytes = TOKEN, generation: int = 9, world_size: int = 4, rank: int = 1) -> AcceptorHandshake:
    return AcceptorHandshake(token, generation, world_size, rank)


def test_members_convince_each_other() -> None:
    dialing, accepting = DialerHandshake(TOKEN, SEAT), acceptor()
    accepting.feed(dialing.feed(accepting.feed(dialing.hello)))
    assert dialing.is_done
    assert accepting.is_done
    assert (dialing.peer, accepting.peer) == (1, 3)


def test_messages_may_arrive_byte_by_byte_and_nothing_beyond_them_is_asked_for() -> None:
    dialing, accepting = DialerHandshake(TOKEN, SEAT), acceptor()

    def trickle(data: bytes, to: DialerHandshake | AcceptorHandshake) -> bytes:
        answer = b""
        for index in range(len(data)):
            assert to.bytes_due == len(data) - index
            answer += to.feed(data[index : index + 1])
        return answer

    trickle(trickle(trickle(dialing.hello, accepting), dialing), accepting)
    assert accepting.is_done
    assert dialing.bytes_due == accepting.bytes_due == 0


def test_acceptor_with_another_token_is_refused_by_the_dialer() -> None:
    dialing = DialerHandshake(TOKEN, SEAT)
    answer = acceptor(token=b"guess").feed(dialing.hello)
    with pytest.raises(HandshakeRefusedError, match="token"):
        dialing.feed(answer)
    assert not dialing.is_done


def test_dialer_with_another_token_is_refused_by_the_acceptor() -> None:
    """The dialer does not even look at the acceptor's proof."""
    dialing, accepting = DialerHandshake(b"guess", SEAT), acceptor()
    accepting.feed(dialing.hello)
    with pytest.raises(HandshakeRefusedError, match="token"):
        accepting.feed(bytes(32))
    assert not accepting.is_done


def test_acceptors_own_proof_sent_back_proves_nothing() -> None:
    accepting = acceptor()
    answer = accepting.feed(DialerHandshake(TOKEN, SEAT).hello)
    with pytest.raises(HandshakeRefusedError, match="token"):
        accepting.feed(answer[32:])


def test_proof_heard_before_is_worth_nothing_later() -> None:
    dialing, accepting = DialerHandshake(TOKEN, SEAT), acceptor()
    proof = dialing.feed(accepting.feed(dialing.hello))
    later = acceptor()
    later.feed(dialing.hello)
    with pytest.raises(HandshakeRefusedError, match="token"):
        later.feed(proof)


@pytest.mark.parametrize(
    "accepting",
    [
        acceptor(generation=8),
        acceptor(generation=10),
        acceptor(world_size=5),
        acceptor(rank=2),
        AcceptorHandshake(TOKEN, 9, 4, 3),
    ],
    ids=["older generation", "newer generation", "other world size", "other rank", "dialed itself"],
)
def test_another_seat_is_refused_before_anything_is_answered(accepting: AcceptorHandshake) -> None:
    with pytest.raises(HandshakeRefusedError):
        accepting.feed(DialerHandshake(TOKEN, SEAT).hello)


def test_stranger_is_refused_at_its_first_wrong_byte() -> None:
    accepting = acceptor()
    assert accepting.feed(b"OC") == b""
    with pytest.raises(HandshakeRefusedError, match="hello"):
        accepting.feed(b"x")
