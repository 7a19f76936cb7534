"""Jobs beside training, each in a process of its own at low priority: profile, verify, compact, evaluate.

`main` is what the launcher's child runs; it answers with one message and ends. Never in a rank: a rank only trains.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import torch

from openclaw_tasks.checkpoint.lineage import BaseSpec
from openclaw_tasks.checkpoint.reader import RunReader
from openclaw_tasks.checkpoint.replay import rebuild_state, verify_run
from openclaw_tasks.checkpoint.writer import put_base
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.errors import OpenClawError
from openclaw_tasks.exact.state import TrainState
from openclaw_tasks.storage.targets import TargetSet, open_targets
from openclaw_tasks.training.build import build_state, build_training
from openclaw_tasks.training.control import ControlChannel

_NICE = 15


def main(spec: dict[str, Any], fds: Sequence[int]) -> int:
    """The child's life after the fork; returns its exit status."""
    line = ControlChannel.adopt(fds[0])
    sys.path.extend(entry for entry in spec["path"] if entry not in sys.path)
    if spec["kind"] != "profile":
        os.nice(_NICE)
    jobs: dict[str, Callable[[TrainJob, dict[str, Any]], dict[str, Any]]] = {
        "profile": profile,
        "verify": verify,
        "compact": compact,
        "evaluate": evaluate,
    }
    try:
        answer = jobs[spec["kind"]](TrainJob.parse(spec["job"]), spec)
        line.send({"ok": True, **answer})
    except Exception as error:  # noqa: BLE001 - the process's outermost loop: whatever was raised is the answer
        text = "".join(traceback.format_exception(error))
        print(text, file=sys.stderr, flush=True)
        line.send(
            {
                "ok": False,
                "error": str(error) if isinstance(error, OpenClawError) else f"{type(error).__name__}: {error}",
                "kind": type(error).__name__,
                "is_ours": isinstance(error, OpenClawError),
                "traceback": text[-15_000:],
            }
        )
    return 0


def profile(job: TrainJob, spec: dict[str, Any]) -> dict[str, Any]:
    """What this place is, and what the job's recipe is here: fingerprints, sizes, cores, memory."""
    training = build_training(job)
    state = training.state
    return {
        "fingerprints": dict(training.fingerprints),
        "layout": state.layout.digest(),
        "num_parameters": sum(entry.numel for entry in state.layout.entries),
        "full_checkpoint_bytes": state.size_bytes(),
        "record_bytes": state.max_record_bytes(),
        "samples": training.source.size,
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "host": os.uname().nodename,
    }


def verify(job: TrainJob, spec: dict[str, Any]) -> dict[str, Any]:
    """Prove the base of a step: decode it from the fewest stripes, and replay the log to the ranks' digest."""
    targets = _targets(job)
    with RunReader(targets, job.run, pin=True) as reader:
        state = build_state(job)[1]
        result = verify_run(reader, lambda: state, spec["step"])
        return {
            "step": result.step,
            "outcome": result.outcome,
            "weights_digest": result.weights_digest,
            "state_digest": result.state_digest,
            "applied": state.applied,
            "full_checkpoint_bytes": state.size_bytes(),
            "warnings": reader.warnings,
        }


def compact(job: TrainJob, spec: dict[str, Any]) -> dict[str, Any]:
    """Make the base of a step whose copy was lost, from an older base and the log; of step 0 from the recipe."""
    targets = _targets(job)
    state = build_state(job)[1]
    if spec["step"] > 0:
        with RunReader(targets, job.run, pin=True) as reader:
            rebuild_state(reader, state, spec["step"])
    snapshot = state.snapshot()
    weights_digest, state_digest = snapshot.digests()
    result = put_base(
        targets,
        BaseSpec.from_json(spec["base"]),
        snapshot.objects,
        snapshot.plain,
        {
            "step": snapshot.step,
            "applied": snapshot.applied,
            "weights_digest": weights_digest,
            "state_digest": state_digest,
        },
    )
    return {
        "ref": result.ref.to_json(),
        "stored_bytes": result.stored_bytes,
        "acked": result.acked,
        "degraded": result.degraded,
    }


def evaluate(job: TrainJob, spec: dict[str, Any]) -> dict[str, Any]:
    """The recipe's own evaluation of the state after a step."""
    begun = time.monotonic()
    recipe, state = build_state(job)
    _rebuild(job, state, spec["step"])
    state.model.eval()
    with torch.no_grad():
        metrics = recipe.evaluate(state.model)
    return {
        "metrics": {name: float(value) for name, value in metrics.items()},
        "seconds": time.monotonic() - begun,
    }


def _rebuild(job: TrainJob, state: TrainState, step: int) -> None:
    with RunReader(_targets(job), job.run, pin=True) as reader:
        rebuild_state(reader, state, step)


def _targets(job: TrainJob) -> TargetSet:
    return open_targets(job.store.targets, deadline_seconds=job.store.deadline)
