"""Making a run ours: is it new, does it go on, may it; then the claim itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openclaw_tasks.checkpoint import driver
from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.commit import highest_claim
from openclaw_tasks.checkpoint.operations import list_everywhere
from openclaw_tasks.checkpoint.paths import claim_prefix
from openclaw_tasks.checkpoint.writer import RunWriter
from openclaw_tasks.config.home import read_entry, write_entry
from openclaw_tasks.config.job import TrainJob, compare_fixed
from openclaw_tasks.errors import DataLossError, JobError
from openclaw_tasks.observe.events import EventLog
from openclaw_tasks.storage.targets import TargetSet, open_targets


@dataclass(frozen=True, slots=True)
class Claimed:
    writer: RunWriter
    warnings: tuple[str, ...]
    missing: Mapping[int, str]
    """Targets that are gone, within what redundancy covers, and why."""


def claim_run(
    job: TrainJob, nodes: Mapping[str, Mapping[str, Any]], events: EventLog, *, accept_new_data: bool
) -> Claimed:
    """Claim `job`'s run; `nodes` are the agents' profiles.

    Raises UsageErrors with nothing changed (a target that a first start needs, a fixed key or data that differ, a
    living holder), DataLossError when more is gone than redundancy covers.
    """
    facts = agreed_facts(nodes)
    targets = open_for_writing(job)
    warnings: list[str] = []
    identity = {
        "fixed": job.fixed(),
        "targets": list(targets.uuids),
        "fingerprints": facts["fingerprints"],
        "layout": facts["layout"],
    }

    def check(previous: Mapping[str, Any]) -> None:
        compare_fixed(previous["fixed"], job.fixed(), run=job.run)
        identity["targets"] = _same_targets(previous["targets"], list(targets.uuids))
        warnings.extend(_compare_facts(job, previous, facts, accept_new_data))

    writer = RunWriter.start(
        targets,
        job.run,
        redundancy=job.store.redundancy,
        identity=identity,
        job=job.document(),
        check_identity=check,
        lease_seconds=job.fault_tolerance.lease,
    )
    write_entry(job, state="running", step=writer.durable_step)
    return Claimed(writer, (*warnings, *writer.warnings), targets.missing())


def agreed_facts(nodes: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """The profile that all places share. Raises JobError when recipe, data or arithmetic differ between them."""
    (first_name, first), *others = nodes.items()
    for name, node in others:
        different = [key for key in first["fingerprints"] if node["fingerprints"][key] != first["fingerprints"][key]]
        if different or node["layout"] != first["layout"]:
            raise JobError(
                f"{name} and {first_name} differ in {' and '.join(different or ['the model'])}; every worker must see "
                "the same data and recipe source and compute with the same arithmetic"
            )
    return first


def check_known_run(job: TrainJob) -> None:
    """Refuse at once what cannot go on: nothing has to be started to find that targets of a known run are gone.

    Raises DataLossError.
    """
    open_for_writing(job)


def open_for_writing(job: TrainJob) -> TargetSet:
    """The run's targets: on a first start all of them, made if need be; later with up to the redundancy missing.

    Raises TargetUnusableError (first start), DataLossError (later).
    """
    entry = read_entry(job.run)
    targets = open_targets(job.store.targets, deadline_seconds=job.store.deadline)
    is_there = _is_on_any(targets, job)
    if entry is None and not is_there:
        return open_targets(job.store.targets, deadline_seconds=job.store.deadline, create=True)
    refuse_too_few(job, targets)
    if not is_there:
        raise DataLossError(
            f"run {job.run!r} was started from here, and none of its targets holds it any more "
            f"({', '.join(targets.urls)}); bring them back, or start under another run name"
        )
    return targets


def refuse_too_few(job: TrainJob, targets: TargetSet) -> None:
    """Raise DataLossError, naming them, if more targets are gone than redundancy covers."""
    missing, covered = len(targets.problems), job.store.redundancy
    if missing > covered:
        problems = "; ".join(targets.problems[index] for index in sorted(targets.problems))
        raise DataLossError(
            f"run {job.run!r}: {missing} of {len(targets.urls)} targets are gone and redundancy covers {covered}: "
            f"{problems}; bring them back, or start under another run name"
        )


def _is_on_any(targets: TargetSet, job: TrainJob) -> bool:
    """Whether a target that answers knows the run. True also when one cannot tell: it may."""
    code = Code(len(targets.urls), job.store.redundancy)
    listing = driver.run(list_everywhere(code, claim_prefix(job.run)), targets)
    cannot_tell = any(index in listing.problems for index, _ in targets.present())
    return cannot_tell or highest_claim(job.run, listing.keys) > 0


def _same_targets(previous: list[str | None], present: list[str | None]) -> list[str | None]:
    """The identities, known ones kept. Raises JobError when a target is not the one the run was started on."""
    for index, (old, new) in enumerate(zip(previous, present, strict=True)):
        if old is not None and new is not None and old != new:
            raise JobError(
                f"store.targets: target {index} is not the one this run was started on ({new} instead of {old}); "
                "name the places in their old order, or start under another name"
            )
    return [new if new is not None else old for old, new in zip(previous, present, strict=True)]


def _compare_facts(
    job: TrainJob, previous: Mapping[str, Any], facts: Mapping[str, Any], accept_new_data: bool
) -> list[str]:
    """Warnings about what differs from the last start. Raises JobError for other data, unless accepted."""
    warnings = []
    for name, old in previous["fingerprints"].items():
        new = facts["fingerprints"][name]
        if new == old:
            continue
        if name == "data" and not accept_new_data:
            raise JobError(
                f"run {job.run!r}: the data are not those of the last start ({new[:12]} instead of {old[:12]}); bring "
                "the old data back, or go on with the new with --accept-new-data"
            )
        warnings.append(
            f"{name} differs from the last start: from here on the bits are not those of an undisturbed run"
        )
    if previous["layout"] != facts["layout"]:
        raise JobError(
            f"run {job.run!r}: the recipe's model has other parameters than at the last start; bring the old recipe "
            "back, or start under another name"
        )
    return warnings
