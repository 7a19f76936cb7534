"""Every error that OpenClaw raises on purpose.

    OpenClawError                     exit 1
    ├── UsageError                    exit 2: input or environment that cannot be; nothing was changed
    │   ├── JobError                  the job file, a --set, a fault, a command's argument
    │   ├── RecipeError               a recipe that cannot be loaded or built
    │   ├── RunLiveError              the run is held by a living process
    │   └── TargetUnusableError       a storage target that does not answer, or may not be written
    └── RunError                      exit 1: the run failed, or lost more than it can repair
        ├── RecipeStepError           the user's code raised in a step; carries that traceback
        ├── DataLossError             more is gone than redundancy covers
        ├── DamagedError              bytes that do not match their digest
        ├── DigestMismatchError       ranks, or a replay and its ranks, disagree about the state
        ├── NonFiniteError            too many consecutive steps whose gradient is not finite
        ├── FencedError               somebody with a newer epoch holds the run
        ├── NotDurableError           too few targets acknowledged in time
        ├── RunCancelledError         somebody cancelled the run; it can be resumed
        ├── GangLostError             no rank is left; the stage's retry starts a fresh gang
        └── StoreError                one operation on one storage target failed
            ├── NotFoundError         a definite answer that the key does not exist
            ├── AlreadyExistsError    a create of a key that exists
            ├── StoreTimeoutError     no answer within our deadline
            └── TargetLostError       the target's identity is gone (deleted, unmounted, replaced)

A message says what happened, where, and the remedy, in one line.
"""

from __future__ import annotations

from typing import ClassVar


class OpenClawError(Exception):
    """Base of the tree; `exit_status` is what the command line ends with."""

    exit_status: ClassVar[int] = 1


class UsageError(OpenClawError):
    """Input or environment that cannot be. Raised before anything was changed."""

    exit_status: ClassVar[int] = 2


class JobError(UsageError):
    """A job file, `--set`, fault or argument that cannot be."""


class RecipeError(UsageError):
    """A recipe that cannot be loaded or built."""


class RunLiveError(UsageError):
    """The run is held by a living process."""

    def __init__(self, run: str, holder: str) -> None:
        super().__init__(f"run {run!r} is live: held by {holder}; stop that process, or choose another run name")
        self.run = run
        self.holder = holder


class TargetUnusableError(UsageError):
    """A storage target that a first start needs does not answer or may not be written."""


class RunError(OpenClawError):
    """The run failed, or lost more than it can repair."""


class RecipeStepError(RunError):
    """The user's code raised while training; `traceback_text` is its own traceback.

    `rank` is None for a rank that was not in any formation yet.
    """

    def __init__(self, message: str, *, step: int, rank: int | None, traceback_text: str) -> None:
        super().__init__(message)
        self.step = step
        self.rank = rank
        self.traceback_text = traceback_text


class DataLossError(RunError):
    """More is gone than the redundancy covers."""


class DamagedError(RunError):
    """Bytes that do not match their digest, or are not what their name says."""


class DigestMismatchError(RunError):
    """Two states that must be the same bits are not."""


class NonFiniteError(RunError):
    """Too many consecutive steps had a gradient that is not finite."""


class FencedError(RunError):
    """A newer epoch holds the run; this writer must end."""


class NotDurableError(RunError):
    """Too few targets acknowledged a write in time."""


class RunCancelledError(RunError):
    """Somebody cancelled the run; it can be resumed."""


class GangLostError(RunError):
    """No rank is left to go on from memory; a fresh gang starts from the durable step."""


class StoreError(RunError):
    """One operation on one storage target failed."""


class NotFoundError(StoreError):
    """The target answered definitely that the key does not exist."""


class AlreadyExistsError(StoreError):
    """A create-only write met an existing key."""


class StoreTimeoutError(StoreError):
    """The target gave no answer within our deadline."""


class TargetLostError(StoreError):
    """The target's identity is gone: deleted, unmounted, or replaced by something else."""
