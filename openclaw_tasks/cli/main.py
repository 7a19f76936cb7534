"""The command `openclaw`. Imports what is heavy only in the command that needs it: `--help` is quick."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from openclaw_tasks import interruption
from openclaw_tasks.errors import DamagedError, OpenClawError, RecipeStepError, RunCancelledError

# Typer brings click along, under a private name or as a package of its own, by version; its public errors derive
# from click's.
_CommandError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

_INTERRUPTED = 128 + signal.SIGINT

app = typer.Typer(
    help="Training that survives its machines: whatever dies, it goes on from the exact step, to the same bits.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="A job file, or a shipped job: demo, tiny.")]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A job file, or the name of a run (see `runs`).")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a key of the job, e.g. store.redundancy=1. Repeatable."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks and every log line.")]
StepOption = Annotated[int | None, typer.Option("--step", help="The step to look at; the last durable one by default.")]


@app.command()
def train(
    job: JobArgument,
    set_: SetOption = None,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write the report as JSON.")] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="F", help="Strike on purpose, e.g. kill-rank:1@40. Repeatable."),
    ] = None,
    accept_new_data: Annotated[
        bool, typer.Option("--accept-new-data", help="Go on although the data differ from the last start's.")
    ] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Train a job, or go on with it where it was."""
    from openclaw_tasks.cli.training import train_job

    train_job(job, set_ or (), report, fault or (), accept_new_data, as_json=as_json, debug=debug)


@app.command()
def export(
    run: RunArgument,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The safetensors file to write.")],
    step: StepOption = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write a run's weights as a safetensors file."""
    from openclaw_tasks import api
    from openclaw_tasks.config.home import resolve_run

    proof = api.export(resolve_run(run, set_ or ()), out, step=step)
    _tell_proof(proof, f"exported step {proof.step} to {out}", as_json)


@app.command()
def verify(
    run: RunArgument,
    step: StepOption = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Prove what a run has stored: rebuild it from the fewest stripes and compare with what its ranks reported."""
    from openclaw_tasks import api
    from openclaw_tasks.config.home import resolve_run

    proof = api.verify(resolve_run(run, set_ or ()), step=step)
    text = f"verified up to step {proof.step}"
    if proof.outcome == "other-arithmetic":
        text = (
            f"step {proof.step} can be read, but this machine computes with other arithmetic than the run's: its bits "
            "can be proven only on a machine like those that trained it"
        )
    _tell_proof(proof, text, as_json)


@app.command()
def runs(set_: SetOption = None, as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """List the runs that were started from this machine."""
    from openclaw_tasks.config.home import known_runs, read_entry

    entries = []
    for name in known_runs():
        try:
            entry = read_entry(name)
        except DamagedError as error:  # it must not hide the others
            _warn(str(error))
            continue
        if entry is not None:
            entries.append(entry)
    if as_json:
        _print_json([{"run": e.run, "step": e.step, "steps": e.steps, "state": e.standing} for e in entries])
        return
    if not entries:
        print("no runs yet; `openclaw train tiny` makes one")
    for entry in entries:
        print(f"{entry.run:30} {entry.step:>8} / {entry.steps:<8} {entry.standing:12} {entry.updated}")


@app.command()
def demo(
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write the report as JSON.")] = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Train through a killed rank and a deleted target, and prove that the bits are the undisturbed run's."""
    from openclaw_tasks.cli.demo import run_demo

    run_demo(set_ or (), report, as_json=as_json, debug=debug)


@app.command()
def ui(debug: DebugOption = False) -> None:
    """Serve the Prefect UI with all runs, until Ctrl-C."""
    from openclaw_tasks.config.home import home
    from openclaw_tasks.steps.server import serve

    try:
        serve(home(), lambda url: print(f"Prefect UI: {url}  (Ctrl-C ends it)", flush=True))
    except KeyboardInterrupt:  # while it started
        raise SystemExit(_INTERRUPTED) from None


def _tell_proof(proof: Any, text: str, as_json: bool) -> None:
    for warning in proof.warnings:
        _warn(warning)
    if as_json:
        _print_json(proof.document())
    else:
        print(text)
        print(f"weights digest  {proof.weights_digest}")
        print(f"state digest    {proof.state_digest}")
    if not proof.ok:
        raise SystemExit(1)


def _print_json(document: Any) -> None:
    print(json.dumps(document, indent=2))


def main() -> NoReturn:
    """Parse, run, and end with the status that says how it went."""
    # The job's own folder is importable by contract; the folder one happens to stand in must not shadow ours.
    sys.path[:] = [entry for entry in sys.path if entry]
    gc.set_threshold(20_000, 20, 20)  # imports make much and drop nothing: looking for garbage takes a tenth of them
    debug = "--debug" in sys.argv[1:]
    interruption.listen()
    try:
        # The status of an exit that Typer made itself: after --help, and, by version, at Ctrl-C.
        status = app(standalone_mode=False) or 0
        if status == _INTERRUPTED:
            raise KeyboardInterrupt
    except _CommandError as error:
        _complain_of_words(error)
        status = 2
    except OpenClawError as error:
        number = interruption.first_told()
        if debug:
            traceback.print_exc()
        elif isinstance(error, RecipeStepError):
            print(error.traceback_text, file=sys.stderr, end="")
        if number is not None and isinstance(error, RunCancelledError):
            status = _say_ended(number)
        else:
            _complain(str(error))
            status = error.exit_status
    except (KeyboardInterrupt, typer.Abort):
        status = _say_ended(signal.SIGINT)
    except interruption.Terminated:
        status = _say_ended(signal.SIGTERM)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except Exception:
        # The process's outermost loop: a library may have made an error of its own of the interruption.
        number = interruption.first_told()
        if number is None:
            raise
        if debug:
            traceback.print_exc()
        status = _say_ended(number)
    raise SystemExit(status)


def _say_ended(number: int) -> int:
    """Tell of the signal; the exit status."""
    what = "interrupted" if number == signal.SIGINT else "told to end (SIGTERM)"
    _complain(f"{what}; the same command goes on where it was")
    return 128 + number


def _complain_of_words(error: Any) -> None:
    """The command line cannot be read; a command alone shows its help."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
    elif context is not None:
        _complain(f"{error.format_message().rstrip('.')}; see `{context.command_path} --help`")
    else:
        _complain(error.format_message())


def _warn(message: str) -> None:
    print(f"openclaw: warning: {message}", file=sys.stderr)


def _complain(message: str) -> None:
    print(f"openclaw: {message}", file=sys.stderr)


if __name__ == "__main__":
    main()
