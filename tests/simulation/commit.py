"""Runs the storage protocol through random schedules and checks what it promises.

    python tests/simulation/commit.py --schedules 50000            the protocol; exit 1 on a violation
    python tests/simulation/commit.py --schedules 5000 --without   each rule left out in turn; exit 1 if not caught
    python tests/simulation/commit.py --seed 17 --code 5,2         one schedule

Writers, putters and readers are the product's own generators over dictionaries in place of targets. After every
single operation another process may go on. Processes die, or are taken for dead and go on; answers are lost or come
too late; targets are out, lost for ever, or rot.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).parents[1]))

from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.history import read_history
from openclaw_tasks.checkpoint.operations import Steps
from openclaw_tasks.checkpoint.start import Starter, claim_epoch, start_epoch
from openclaw_tasks.errors import DataLossError, NotDurableError
from simulation.cast import PROCESS, Actor, Cast
from simulation.promises import Oracle
from simulation.readers import Reader, read_everything
from simulation.rules import RULES
from simulation.world import RUN, Odds, Violation, World
from simulation.writers import Writer

T = TypeVar("T")
CODES = (Code(5, 2), Code(3, 1), Code(4, 1), Code(1, 0))


@dataclass(frozen=True, slots=True)
class Result:
    """How one schedule ended; `violation` is None when every promise was kept."""

    seed: int
    violation: str | None
    counts: Counter[str]


def run_schedule(seed: int, code: Code, left_out: str | None = None) -> Result:
    """One schedule, fully determined by its arguments."""
    rng = random.Random(f"{seed}-{code.n}-{code.m}")
    odds = Odds.drawn(rng)
    world = World(code, rng, odds)
    oracle = Oracle(world)
    world.watchers.append(oracle)
    cast = Cast(world, oracle, left_out)
    violation = None
    try:
        _play(cast)
        _close(cast)
    except Violation as error:
        violation = str(error)
    counts = Counter(
        schedules=1,
        groups=oracle.acknowledged_groups,
        bases=oracle.acknowledged_bases,
        starts=oracle.starts,
        deletes=oracle.deletes,
        readings=oracle.readings,
        losses=oracle.declared_losses,
        lost_targets=len(world.lost),
        crashes=cast.crashes,
    )
    return Result(seed, violation, counts)


def _play(cast: Cast) -> None:
    """Everything at once, until all processes have ended."""
    world, rng = cast.world, cast.world.rng
    coming: list[Actor] = []
    for number in range(rng.randint(1, 4)):
        writer = Writer(cast, f"w{number}")
        coming.append(Actor(writer.live(), on_death=writer.die))
    for number in range(rng.randint(0, 2)):
        reader = Reader(cast, f"r{number}")
        coming.insert(rng.randrange(len(coming) + 1), Actor(reader.live(), on_death=reader.die))
    living: list[Actor] = []
    while living or coming:
        if coming and (not living or rng.random() < 0.01):
            living.append(coming.pop(0))
        actor = rng.choice(living)
        if rng.random() < world.odds.crash * (0.2 if actor.is_waiting else 1):
            living.remove(actor)
            cast.crashes += 1
            if actor.on_death is not None:
                actor.on_death()
            continue
        world.disturb()
        if not actor.advance(world):
            living.remove(actor)
        living += cast.new_actors
        cast.new_actors.clear()


def _close(cast: Cast) -> None:
    """Late operations land or not, outages end, the frail targets are lost; then a last start, and read it all."""
    world, rng, oracle = cast.world, cast.world.rng, cast.oracle
    while world.late:
        operation = world.late.pop()
        if rng.random() < 0.5:
            world.land(operation)
    world.out.clear()
    world.is_calm = True
    if world.odds.loss and rng.random() < 0.7:
        for target in world.frail:
            world.lose(target)
    starter = Starter(RUN, world.code, "last", PROCESS, [], {}, {})
    try:
        epoch = drain(world, claim_epoch(starter, jitter=lambda: 0.0))
        found = drain(world, read_history(RUN, world.code.n, world.code))
        start, history = drain(world, start_epoch(starter, epoch, found))
        oracle.on_started(start, history)
        oracle.check_repaired(history, set())
        again = drain(world, read_history(RUN, world.code.n, world.code))
        oracle.check_lineage(again.lineage, oracle.promised, "at the end")
        drain(world, read_everything(cast, again))
        if again.lineage.groups and not any(b.ref.step <= again.lineage.end_step for b in again.bases):
            raise Violation("no base is left")
    except (DataLossError, NotDurableError) as error:
        # All targets that are not lost answer: what must still be waited for stood on lost ones.
        oracle.check_loss(str(error), is_last=True)


def drain(world: World, steps: Steps[T]) -> T:
    """Run one generator alone."""
    try:
        batch = next(steps)
        while True:
            batch = steps.send(
                [None if not hasattr(operation, "target") else world.perform(operation) for operation in batch]
            )
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def run_many(schedules: int, left_out: str | None, first_seed: int = 0, *, stop_early: bool = False) -> int:
    """Print a line per code; the number of violations."""
    violations = 0
    for number, code in enumerate(CODES):
        total: Counter[str] = Counter()
        kinds: Counter[str] = Counter()
        example = None
        begun = time.perf_counter()
        share = schedules // len(CODES) + (number < schedules % len(CODES))
        for seed in range(first_seed, first_seed + share):
            result = run_schedule(seed, code, left_out)
            total += result.counts
            if result.violation is not None:
                kinds[" ".join(result.violation.split()[:2])] += 1
                example = example or (seed, result.violation)
                if stop_early:
                    break
        violations += sum(kinds.values())
        shown = ", ".join(f"{count} {name}" for name, count in total.items())
        without = f" without {left_out}" if left_out else ""
        print(f"n={code.n} m={code.m}{without}: {shown}; {sum(kinds.values())} violations {dict(kinds)}", flush=True)
        if example is not None:
            print(f"    seed {example[0]}: {example[1]}", flush=True)
        print(f"    {time.perf_counter() - begun:.1f} s", flush=True)
    return violations


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=2000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--without", action="store_true", help="leave out each rule in turn")
    parser.add_argument("--seed", type=int, help="run this one schedule")
    parser.add_argument("--code", default="5,2", help="n,m of the one schedule")
    parser.add_argument("--rule", choices=RULES, help="leave out this rule")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        n, m = (int(part) for part in arguments.code.split(","))
        result = run_schedule(arguments.seed, Code(n, m), arguments.rule)
        print(result)
        return int(result.violation is not None)
    if not arguments.without:
        return int(run_many(arguments.schedules, arguments.rule, arguments.first_seed) > 0)
    missed = [rule for rule in RULES if run_many(arguments.schedules, rule, arguments.first_seed) == 0]
    print("not caught:", ", ".join(missed) or "none")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
