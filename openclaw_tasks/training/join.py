"""Entering a formation: mesh with its members, then everybody gets the state of the most advanced one.

One mechanism for all: survivors of a loss (some may lack the last record), newcomers (they lack everything), a fresh
gang (nobody has a state: rank 0 restores it from storage, or makes the first one, and hands it on).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from openclaw_tasks.collectives.transport import Dynamic, Transport
from openclaw_tasks.exact.record import Buffer, Record, byte_view, seal_record
from openclaw_tasks.exact.snapshot import Snapshot
from openclaw_tasks.exact.state import TrainState
from openclaw_tasks.training.build import Training

_MAX_STANDING_BYTES = 1024
_MAX_DESCRIPTION_BYTES = 64 << 20
_PATIENCE_SECONDS = 600.0
NOTHING = -1  # the step of a rank that has no state yet


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a rank stands when it enters: its last applied step, and whether the group has decided to end there."""

    step: int
    finishing: bool


@dataclass(frozen=True, slots=True)
class Member:
    """What `catch_up` needs of this rank."""

    training: Training
    standing: Standing
    last_record: memoryview | None
    first_state: Callable[[], None]  # restore from storage, or begin at step 0
    take_record: Callable[[Record], None]  # keep and apply a record that others have applied


def catch_up(transport: Transport, member: Member, *, deadline_seconds: float, on_idle: Callable[[], None]) -> bool:
    """Bring every member to the same step; returns whether the group is finishing.

    Raises LinkBrokenError or ExchangeTimeoutError like any exchange: the next formation does it again.
    """
    standings = _tell_standings(transport, member.standing, deadline_seconds, on_idle)
    finishing = any(standing.finishing for standing in standings)
    newest = max(standing.step for standing in standings)
    if newest == NOTHING:
        source = 0
        if transport.rank == source:
            member.first_state()
    else:
        source = next(rank for rank, standing in enumerate(standings) if standing.step == newest)
    behind = {
        rank: standing.step
        for rank, standing in enumerate(standings)
        if rank != source and (standing.step < newest or newest == NOTHING)
    }
    if transport.rank == source:
        _hand_out(transport, member, behind, deadline_seconds, on_idle)
    elif transport.rank in behind:
        _take(transport, member, source, deadline_seconds, on_idle)
    return finishing


def _tell_standings(
    transport: Transport, mine: Standing, deadline_seconds: float, on_idle: Callable[[], None]
) -> list[Standing]:
    peers = [rank for rank in range(transport.world_size) if rank != transport.rank]
    text = json.dumps([mine.step, mine.finishing]).encode()
    received = transport.exchange(
        {peer: [text] for peer in peers},
        {peer: [Dynamic(_MAX_STANDING_BYTES)] for peer in peers},
        deadline_seconds=deadline_seconds,
        on_idle=on_idle,
    )
    standings = {transport.rank: mine}
    for peer in peers:
        data = received[peer][0]
        assert data is not None
        standings[peer] = Standing(*json.loads(bytes(data)))
    return [standings[rank] for rank in range(transport.world_size)]


def _hand_out(
    transport: Transport,
    member: Member,
    behind: dict[int, int],
    deadline_seconds: float,
    on_idle: Callable[[], None],
) -> None:
    """The last record to those one step behind, the whole state to the others: a description, then the bytes.

    Of the state the live tensors themselves are sent: nothing changes them before the exchange is over.
    """
    state = member.training.state
    descriptions: dict[int, list[bytes]] = {}
    bodies: dict[int, list[Any]] = {}
    whole: tuple[bytes, list[Any]] | None = None
    for rank, step in behind.items():
        if step == state.step - 1 and member.last_record is not None:
            seal_record(member.last_record)
            description = {"kind": "record", "bytes": len(member.last_record)}
            descriptions[rank], bodies[rank] = [json.dumps(description).encode()], [member.last_record]
            continue
        whole = whole or _describe(state)
        descriptions[rank], bodies[rank] = [whole[0]], whole[1]
    for sends in (descriptions, bodies):
        transport.exchange(sends, {}, deadline_seconds=deadline_seconds, on_idle=on_idle)


def _describe(state: TrainState) -> tuple[bytes, list[Any]]:
    objects, plain = state.live_parts()
    description = {
        "kind": "state",
        "step": state.step,
        "applied": state.applied,
        "plain": plain,
        "objects": [[name, [byte_view(part).nbytes for part in parts]] for name, parts in objects.items()],
    }
    return json.dumps(description).encode(), [part for parts in objects.values() for part in parts]


def _take(
    transport: Transport, member: Member, source: int, deadline_seconds: float, on_idle: Callable[[], None]
) -> None:
    # The source may first have to restore from storage; its own agent watches that it moves.
    first = transport.exchange(
        {}, {source: [Dynamic(_MAX_DESCRIPTION_BYTES)]}, deadline_seconds=_PATIENCE_SECONDS, on_idle=on_idle
    )[source][0]
    assert first is not None
    description = json.loads(bytes(first))
    if description["kind"] == "record":
        record = bytearray(description["bytes"])
        transport.exchange({}, {source: [record]}, deadline_seconds=deadline_seconds, on_idle=on_idle)
        member.take_record(Record.parse(record))
        return
    objects: dict[str, Buffer] = {}
    bodies: list[memoryview] = []
    for name, lengths in description["objects"]:
        whole = np.empty(sum(lengths), np.uint8).data  # not cleared: every byte of it is received
        objects[name] = whole
        ends = itertools.accumulate(lengths)
        bodies += [whole[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    transport.exchange({}, {source: bodies}, deadline_seconds=deadline_seconds, on_idle=on_idle)
    member.training.state.restore(
        Snapshot(
            step=description["step"],
            applied=description["applied"],
            objects=objects,
            plain=description["plain"],
        )
    )
