"""One document of each kind, for tests."""

from __future__ import annotations

from openclaw_tasks.checkpoint.documents import (
    BaseManifest,
    BaseNote,
    BaseObject,
    Claim,
    Degraded,
    Document,
    Floor,
    Holder,
    Pin,
    Process,
    Start,
)
from openclaw_tasks.checkpoint.lineage import BaseRef, GroupRef

PROCESS = Process(host="node1", boot="b00t", pid=4711, started=12345)
GROUP = GroupRef(epoch=1, writer="w1", seq=1, attempt=0, first=1, last=8, previous="", digest="ab" * 32, size=99)
BASE = BaseRef(epoch=1, writer="w1", step=0, verified=True)
START = Start(
    run="lm",
    epoch=2,
    writer="w2",
    n=5,
    m=2,
    target_uuids=("a", "b", "c", "d", "e"),
    parent="lm/start/1-w1.json",
    groups=(GROUP,),
    bases=(BASE,),
    skip=(7,),
    floor=0,
    end_step=8,
    reason="resume",
    job={"steps": 60, "clip_norm": 1.0},
    identity={"dataset": "cd" * 32},
    process=PROCESS,
)
DOCUMENTS: list[Document] = [
    START,
    Claim(run="lm", epoch=2, writer="w2", process=PROCESS),
    Holder(
        run="lm",
        epoch=2,
        writer="w2",
        counter=17,
        released=False,
        durable_step=8,
        agents=(PROCESS,),
        process=PROCESS,
    ),
    BaseManifest(
        run="lm",
        step=25,
        epoch=2,
        writer="w2",
        n=5,
        m=2,
        applied=24,
        objects=(
            BaseObject(
                name="params",
                attempt=0,
                object_bytes=100,
                object_digest="01" * 32,
                payload_bytes=80,
                payload_digest="23" * 32,
            ),
        ),
        plain={"lr": (0.1).hex()},
        weights_digest="45" * 32,
        state_digest="67" * 32,
    ),
    BaseNote(run="lm", step=25, epoch=2, writer="w2", mark="verified", facts={"replayed": 25}),
    Degraded(run="lm", epoch=2, writer="w2", sequence=3, first=17, last=24, attempt=1),
    Floor(run="lm", epoch=2, writer="w2", step=25),
    Pin(run="lm", id="p1", counter=3, bases=(BASE,), first=1, purpose="export", process=PROCESS),
]
