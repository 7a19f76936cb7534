"""The gang as the flow's stages see it: a handle that outlives them."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path
from typing import Any

from openclaw_tasks import errors
from openclaw_tasks.checkpoint.writer import RunWriter
from openclaw_tasks.config.faults import Fault
from openclaw_tasks.config.home import run_folder
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.errors import OpenClawError, RunError
from openclaw_tasks.gang.board import Facts
from openclaw_tasks.gang.keeping import base_result
from openclaw_tasks.gang.placing import Placement
from openclaw_tasks.gang.supervisor import Supervisor
from openclaw_tasks.observe.events import EventLog

AGENTS_SECONDS = 120.0
SPARE_SECONDS = 3600.0
_COPY_SECONDS = 1.0


class Gang:
    """Use as `with Gang(...) as gang`: agents come with the entry and are gone after the exit."""

    def __init__(self, job: TrainJob, placement: Placement, events: EventLog, faults: tuple[Fault, ...] = ()) -> None:
        self._job = job
        self._placement = placement
        token = secrets.token_hex(32)
        self._supervisor = Supervisor(job, events, bytes.fromhex(token), faults)  # first: it may refuse
        folder = run_folder(job.run)
        folder.mkdir(parents=True, exist_ok=True)
        self._token_file = folder / f"token-{os.getpid()}-{secrets.token_hex(4)}"
        with os.fdopen(os.open(self._token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(token)
        self.board = self._supervisor.board
        self._writer: RunWriter | None = None
        self._gangs_lost: set[tuple[int, str]] = set()  # (step, cause) of each loss of every rank

    def __enter__(self) -> Gang:
        self._supervisor.start()
        config = {
            "supervisor": list(self._supervisor.address),
            "token_file": str(self._token_file),
            "log_folder": str(run_folder(self._job.run) / "logs"),
            "name": self._job.run,
        }
        try:
            self._placement.start(config)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of the gang, and every wait on its board. Bounded; may be called again."""
        self.board.update(_mark_closed)
        self._supervisor.close()
        self._placement.close()
        with contextlib.suppress(FileNotFoundError):
            Path(self._token_file).unlink()

    # Before the run is ours

    def wait_for_agents(self) -> list[str]:
        """The agents' names, once all wanted ones (or after a while at least one) are here. Raises RunError."""
        wanted = self._job.cluster.workers
        names = self.board.wait(
            lambda facts: len(facts.agents) >= wanted and facts.agents, timeout_seconds=AGENTS_SECONDS
        )
        names = names or self.board.read(lambda facts: facts.agents)
        if not names:
            raise RunError(
                f"no agent came within {AGENTS_SECONDS:g} s; see {run_folder(self._job.run) / 'logs'} on the workers"
            )
        return list(names)

    def profile(self) -> dict[str, dict[str, Any]]:
        """What each agent's place is, and what the recipe is there. Raises what building the recipe raised."""
        numbers = {name: self._supervisor.run_spare("profile", {}, agent=name) for name in self.wait_for_agents()}
        return {name: self._answer(number) for name, number in numbers.items()}

    # Training

    def begin(self, writer: RunWriter) -> None:
        """The run is ours: ranks start on every agent."""
        self._writer = writer
        self._supervisor.attach(writer)

    def begin_again(self) -> bool:
        """Start fresh ranks if the gang was lost, once all that was final is in storage; whether it was.

        Raises RunError when the same cause took every rank in the same step before: it would do so for ever.
        """
        lost = self.board.read(lambda facts: facts.lost_cause and (facts.step + 1, facts.lost_cause.split(":")[0]))
        if not lost:
            return False
        step, cause = lost
        # What happens to a whole machine says nothing of the step.
        if lost in self._gangs_lost and cause.startswith(("hung", "rank ")):
            raise RunError(
                f"step {step}: no rank survives it, twice in a row ({cause}); look at what the recipe and its data do "
                "there, and at the workers' memory"
            )
        self._gangs_lost.add(lost)
        self.settle()
        self._supervisor.restart()
        return True

    def wait_for_step(self, step: int) -> None:
        """Return when `step` has been applied, and the run's last one is in storage: nobody would do it again.

        Raises GangLostError, or the run's error.
        """
        durable = step if step >= self._job.steps else 0
        self.board.wait(lambda facts: facts.step >= step and facts.durable_step >= durable)

    def wait_for_durable(self, step: int) -> None:
        """Return when everything up to `step` is in storage."""
        self.board.wait(lambda facts: facts.durable_step >= step, through_loss=True)

    def ensure_base(self, step: int) -> None:
        """Return when the base of a boundary is in storage: a rank's copy, or made from the log if that was lost."""

        def settled(facts: Any) -> Any:
            if step in facts.bases or step in facts.bases_refused:
                return "done"
            is_past = facts.durable_step >= step and (step in facts.digests or step <= facts.resumed_step)
            return "missing" if is_past and step not in facts.bases_pending else None

        while self.board.wait(settled, through_loss=True) == "missing":
            time.sleep(_COPY_SECONDS)  # the copy may be on its way
            if self.board.read(settled) != "missing":
                continue
            assert self._writer is not None
            spec = self._writer.base_spec(step).to_json()
            answer = self.spare("compact", {"step": step, "base": spec})
            self._supervisor.keep_base(base_result(answer))
            self.board.wait(lambda facts: step in facts.bases, through_loss=True)

    def note_verified(self, step: int, found: dict[str, Any]) -> None:
        """A job beside training has rebuilt this boundary: its digests, if no rank of this attempt told them."""
        facts_of_step = {name: found[name] for name in ("weights_digest", "state_digest", "applied")}
        self.board.update(lambda facts: facts.digests.setdefault(step, facts_of_step))
        size = found["full_checkpoint_bytes"]
        self.board.update(lambda facts: setattr(facts, "full_checkpoint_bytes", size))

    def spare(self, kind: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run a job beside training and return its answer; again elsewhere if its agent dies."""
        while True:
            number = self._supervisor.run_spare(kind, arguments)
            try:
                return self._answer(number)
            except AgentGone:
                self.board.wait(lambda facts: facts.agents, timeout_seconds=AGENTS_SECONDS, through_loss=True)

    def stop(self, timeout_seconds: float) -> bool:
        """Let the ranks end together after their step, and put all that is final; whether that was in time."""
        self._supervisor.request_stop()
        ended = self.board.wait(
            lambda facts: facts.is_ended or facts.error is not None or not facts.is_running,
            timeout_seconds=timeout_seconds,
            through_loss=True,
            through_error=True,
        )
        return bool(ended) and self.settle(timeout_seconds)

    def settle(self, timeout_seconds: float = 60.0) -> bool:
        """Wait until every final record that an agent holds is in storage; whether that came in time."""
        self._supervisor.flush()
        return bool(
            self.board.wait(
                lambda facts: facts.is_settled,
                timeout_seconds=timeout_seconds,
                through_loss=True,
                through_error=True,
            )
        )

    def _answer(self, number: int) -> dict[str, Any]:
        answer: dict[str, Any] | None = self.board.wait(
            lambda facts: facts.spares.get(number), timeout_seconds=SPARE_SECONDS, through_loss=True
        )
        if answer is None:
            raise RunError(f"a job beside training gave no answer within {SPARE_SECONDS:g} s")
        if answer["ok"]:
            return answer
        if answer.get("retry"):
            raise AgentGone(answer["error"])
        kind = getattr(errors, answer.get("kind", ""), None)
        if answer.get("is_ours") and isinstance(kind, type) and issubclass(kind, OpenClawError):
            error: OpenClawError = kind.__new__(kind)
            Exception.__init__(error, answer["error"])
            error.__cause__ = RemoteTraceback(answer["traceback"])
            raise error
        raise RunError(answer["error"])


def _mark_closed(facts: Facts) -> None:
    facts.error = facts.error or RunError("the gang has been closed")


class AgentGone(RunError):
    """The agent that ran a job beside training is gone; the job can run elsewhere."""


class RemoteTraceback(Exception):
    """Another process's traceback, shown as the cause of the error that came from there."""
