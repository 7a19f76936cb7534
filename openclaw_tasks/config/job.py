"""The job file: what to train, on how many workers, and how what it learns is kept."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from openclaw_tasks.config.checks import check_address, check_plain, check_target, check_targets_apart
from openclaw_tasks.config.expand import FILE_SCHEME
from openclaw_tasks.config.home import RUN_NAME, run_folder
from openclaw_tasks.config.problems import ConflictError, describe
from openclaw_tasks.config.source import (
    apply_overrides,
    expand_document,
    locate_job,
    read_overrides,
    read_yaml_file,
)
from openclaw_tasks.config.text import show, show_path
from openclaw_tasks.config.units import Duration, Size
from openclaw_tasks.errors import JobError

FIXED_KEYS: Final = (
    "recipe",
    "recipe_args",
    "seed",
    "global_batch",
    "logical_shards",
    "threads_per_rank",
    "clip_norm",
    "codec",
    "store.redundancy",
    "store.targets",
)
"""Fixed for a run's life; of the targets only their number here: their identities are on the targets."""

_MAX_COUNT: Final = 2**53
_MAX_TARGETS: Final = 256
_MAX_DOCUMENT_BYTES: Final = 100_000


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )


class ClusterConfig(_Section):
    """Where ranks run."""

    workers: int = Field(default=2, ge=1, le=4096, examples=[2])
    """Workers to start with; one rank each."""
    address: (
        Annotated[str, Field(pattern=r"^((tcp|tls|ws|wss|ucx)://)?[^\s/@]+:[0-9]{1,5}$"), AfterValidator(check_address)]
        | None
    ) = Field(default=None, examples=["tcp://10.0.0.1:8786"])
    """Address of a Dask scheduler; without one, a cluster on this machine is started."""
    host: str = Field(default="127.0.0.1", pattern=r"^[A-Za-z0-9_.:%-]{1,253}$", examples=["127.0.0.1"])
    """Interface (its address or host name) that agents and ranks bind to."""


class StoreConfig(_Section):
    """Where records and bases are kept."""

    targets: list[Annotated[str, AfterValidator(check_target)]] = Field(
        min_length=1, max_length=_MAX_TARGETS, examples=[["file:///mnt/a", "file:///mnt/b", "file:///mnt/c"]]
    )
    """Storage targets, each losing nothing when another is lost."""
    redundancy: int = Field(default=2, ge=0, lt=_MAX_TARGETS // 2, examples=[2])
    """Targets that may be lost without losing anything."""
    group_steps: int = Field(default=8, ge=1, le=_MAX_COUNT, examples=[8])
    """Steps of records put together."""
    deadline: Duration = Field(default=10.0, examples=["10s"])
    """Longest wait for one operation on one target."""

    @model_validator(mode="after")
    def _check_code(self) -> Self:
        count, lost = len(self.targets), self.redundancy
        if count - lost <= lost:
            raise ConflictError(
                f"store.redundancy={lost} is too high for the {count} of store.targets; "
                f"name at least {2 * lost + 1} targets, or set store.redundancy to at most {(count - 1) // 2}"
            )
        check_targets_apart(self.targets)
        return self


class FaultToleranceConfig(_Section):
    """How much may be at risk, and how long is waited."""

    max_rollback_steps: int = Field(default=50, ge=2, le=_MAX_COUNT, examples=[50])
    """Most steps that are replayed to rebuild a state."""
    max_unprotected_steps: int = Field(default=64, ge=1, le=_MAX_COUNT, examples=[64])
    """Most steps that training may be ahead of storage; then it waits."""
    max_unprotected_bytes: Size = Field(default=1_000_000_000, examples=["1GB"])
    """Most bytes of records that training may be ahead of storage; then it waits."""
    max_retries: int = Field(default=3, ge=0, le=1000, examples=[3])
    """Times that a stage with no rank left is started again."""
    lease: Duration = Field(default=10.0, examples=["10s"])
    """Silence after which a process has lost its place."""
    max_skipped_steps: int = Field(default=10, ge=1, le=_MAX_COUNT, examples=[10])
    """Steps in a row whose gradient is not finite, before the run fails."""


class TrainJob(_Section):
    """One training run. `TrainJob.load` reads a job file; the constructor takes resolved values."""

    run: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100, examples=["my-run"])
    """Name of the run; running the same name again goes on with it."""
    recipe: str = Field(
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$",
        examples=["openclaw_tasks.recipes.language:ByteLM"],
    )
    """What to train, as module:Class."""
    recipe_args: Annotated[dict[str, Any], AfterValidator(check_plain)] = Field(
        default_factory=dict, examples=["{width: 128}"]
    )
    """Arguments of the recipe's constructor: plain values."""
    seed: int = Field(default=0, ge=0, lt=2**63, examples=[17])
    """Decides sample order and every random number."""
    steps: int = Field(ge=1, le=_MAX_COUNT, examples=[200])
    """Optimizer steps of the whole run; may grow later."""
    segment_steps: int = Field(default=25, ge=1, le=_MAX_COUNT, examples=[25])
    """Steps after which a base is cut and verified."""
    global_batch: int = Field(ge=1, le=_MAX_COUNT, examples=[64])
    """Samples in one step, over all ranks."""
    logical_shards: int = Field(default=8, ge=1, le=65536, examples=[8])
    """Parts the global batch is computed in, whatever the number of ranks; a power of two."""
    threads_per_rank: int = Field(default=1, ge=1, le=1024, examples=[1])
    """Threads of each rank; part of the arithmetic."""
    clip_norm: float | None = Field(default=1.0, gt=0, examples=[1.0])
    """Global norm that gradients are clipped to; null for none."""
    codec: Literal["bf16", "exact", "int8"] = Field(default="bf16", examples=["bf16"])
    """How gradients are stored, and consumed."""
    cluster: ClusterConfig = ClusterConfig()
    """Where ranks run."""
    store: StoreConfig
    """Where records and bases are kept; by default in folders under the run's own."""
    fault_tolerance: FaultToleranceConfig = FaultToleranceConfig()
    """How much may be at risk, and how long is waited."""
    folder: str | None = None
    """Folder that relative paths were taken from, and that the recipe may be imported from; set by `load`."""

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        set: Mapping[str, object] | Sequence[str] = (),  # noqa: A002 (the contract's word)
    ) -> Self:
        """Read a job file, or the shipped job of that name, with `set` in place of what the file says.

        `set` is {"store.redundancy": 1}, or ["store.redundancy=1"]; text values are read as YAML. Relative
        paths are taken from the file's folder, for a shipped job from the working folder. Raises JobError.
        """
        file = locate_job(path)
        overrides = read_overrides(set)
        document = read_yaml_file(file.path)
        if "folder" in document:
            raise JobError(f"{show_path(file.path)}: unknown key 'folder'; remove it: it is the file's own folder")
        expanded = expand_document(document, file)
        apply_overrides(expanded, overrides, file.folder)
        return cls._validated({**expanded, "folder": str(file.folder)}, show_path(file.path))

    @classmethod
    def parse(
        cls,
        document: Mapping[str, Any],
        *,
        set: Mapping[str, object] | Sequence[str] = (),  # noqa: A002
        source: str = "job",
    ) -> Self:
        """The job of a resolved `document`, as `document()` gives it; only what `set` says is expanded.

        `source` names the document in errors. Raises JobError.
        """
        folder = document.get("folder")
        changed = dict(document)
        apply_overrides(changed, read_overrides(set), Path(folder) if isinstance(folder, str) else Path.cwd())
        return cls._validated(changed, source)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The job that `to_json` wrote. Raises JobError."""
        try:
            document = json.loads(text)
        except ValueError as error:
            raise JobError(f"not a job in JSON: {error}; use what TrainJob.to_json wrote") from None
        if not isinstance(document, dict):
            raise JobError("not a job in JSON: no mapping of keys; use what TrainJob.to_json wrote")
        return cls.parse(document)

    @classmethod
    def _validated(cls, document: dict[str, Any], source: str) -> Self:
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise JobError(f"{source}: {describe(error, cls)}") from None

    def document(self) -> dict[str, Any]:
        """The job in its resolved form, of plain JSON values."""
        return self.model_dump(mode="json")

    def to_json(self) -> str:
        """The job in its resolved form, as JSON."""
        return self.model_dump_json()

    def fixed(self) -> dict[str, Any]:
        """What must not change in a run's life, of plain JSON values, by FIXED_KEYS."""
        document = self.document()
        values = {key: document[key] for key in FIXED_KEYS if "." not in key}
        return {
            **values,
            "store.redundancy": self.store.redundancy,
            "store.targets": f"{len(self.store.targets)} targets",
        }

    @model_validator(mode="before")
    @classmethod
    def _choose_targets(cls, given: Any) -> Any:
        """Without `store.targets`, as many folders as the redundancy needs, under the run's own folder."""
        store = given.get("store", {}) if isinstance(given, dict) else None
        if not isinstance(store, dict) or "targets" in store:
            return given
        run, redundancy = given.get("run"), store.get("redundancy", 2)
        if not (type(redundancy) is int and 0 <= redundancy < _MAX_TARGETS // 2):
            redundancy = 2  # refused by its own field
        folder = run_folder(run if isinstance(run, str) and RUN_NAME.fullmatch(run) else "run")
        targets = [f"{FILE_SCHEME}{folder}/t{index}" for index in range(2 * redundancy + 1)]
        return {**given, "store": {**store, "targets": targets}}

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        shards, limits = self.logical_shards, self.fault_tolerance
        if shards & (shards - 1):
            below = 1 << (shards.bit_length() - 1)
            raise ConflictError(f"logical_shards={shards} must be a power of two; choose {below} or {2 * below}")
        if self.global_batch % shards:
            raise ConflictError(
                f"global_batch={self.global_batch} must be a multiple of logical_shards={shards}; change either"
            )
        if self.cluster.workers > shards:
            raise ConflictError(
                f"cluster.workers={self.cluster.workers} must not exceed logical_shards={shards}; change either"
            )
        if 2 * self.segment_steps > limits.max_rollback_steps:
            raise ConflictError(
                f"segment_steps={self.segment_steps} must not exceed half of "
                f"fault_tolerance.max_rollback_steps={limits.max_rollback_steps}; change either"
            )
        if self.store.group_steps > limits.max_unprotected_steps:
            raise ConflictError(
                f"store.group_steps={self.store.group_steps} must not exceed "
                f"fault_tolerance.max_unprotected_steps={limits.max_unprotected_steps}; change either"
            )
        size_bytes = len(self.to_json().encode())
        if size_bytes > _MAX_DOCUMENT_BYTES:
            raise ConflictError(
                f"the job has {size_bytes} bytes, more than {_MAX_DOCUMENT_BYTES}; "
                "keep large values in a file and name it in recipe_args"
            )
        return self


def compare_fixed(old: Mapping[str, Any], new: Mapping[str, Any], *, run: str | None = None) -> None:
    """Raise JobError, naming key and both values, unless two `TrainJob.fixed()` are the same."""
    name = "the run" if run is None else f"run {run!r}"
    for key in sorted({*old, *new}):
        difference = _first_difference(key, old.get(key, _ABSENT), new.get(key, _ABSENT))
        if difference is not None:
            where, before, now = difference
            raise JobError(
                f"{where}={_show(now)} differs from {_show(before)}, with which {name} was started; "
                "it is fixed for a run's life: set it back, or choose another run name"
            )


_ABSENT: Final = object()


def _show(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)  # as a job file spells it
    return "(absent)" if value is _ABSENT else show(value)


def _first_difference(key: str, old: Any, new: Any) -> tuple[str, Any, Any] | None:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            difference = _first_difference(f"{key}.{name}", old.get(name, _ABSENT), new.get(name, _ABSENT))
            if difference is not None:
                return difference
        return None
    # As JSON: to Python 1, 1.0 and True are equal; to a recipe they need not be.
    same = _ABSENT not in (old, new) and json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True)
    return None if same else (key, old, new)
