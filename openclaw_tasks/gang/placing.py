"""Where agents run: on this machine directly, or on Dask workers. Dask places agents and does nothing else."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Protocol

from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.errors import UsageError
from openclaw_tasks.gang.keeper import AgentKeeper
from openclaw_tasks.gang.zygote import Zygote

_CONNECT_SECONDS = 15


class Placement(Protocol):
    """Starts agents with a configuration, and ends them."""

    def start(self, config: dict[str, Any]) -> None:
        """Begin; agents appear at the supervisor by themselves. Raises UsageError."""
        ...

    def close(self) -> None:
        """End every agent; returns when they are gone. Bounded."""
        ...


class LocalPlacement:
    """Agents as children of this process: for tests, reference runs and benchmarks without Dask."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._zygote: Zygote | None = None
        self._keepers: list[AgentKeeper] = []

    def start(self, config: dict[str, Any]) -> None:
        folder = Path(config["log_folder"])
        self._zygote = Zygote()
        names = [f"local-{number}" for number in range(self._workers)]
        self._keepers = [AgentKeeper(name, folder, self._zygote.address) for name in names]
        for keeper in self._keepers:
            keeper.serve(config)

    def close(self) -> None:
        _close_all(self._keepers)
        if self._zygote is not None:
            self._zygote.close()


def _close_all(keepers: list[AgentKeeper]) -> None:
    for keeper in keepers:
        keeper.dismiss()
    for keeper in keepers:
        keeper.close()


class WarmAgents:
    """Agents on this machine that serve one gang after the other, with what is slow to start kept warm.

    Use as a context; `placement(n)` places a gang on `n` of them.
    """

    def __init__(self, log_folder: Path) -> None:
        self._log_folder = log_folder
        self._zygote = Zygote()
        self._keepers: list[AgentKeeper] = []

    def __enter__(self) -> WarmAgents:
        return self

    def __exit__(self, *_: object) -> None:
        _close_all(self._keepers)
        self._zygote.close()

    def placement(self, workers: int) -> WarmPlacement:
        """A placement on `workers` agents, those that have been up longest; starts what is not there yet."""
        while len(self._keepers) < workers:
            name = f"warm-{len(self._keepers)}"
            self._keepers.append(AgentKeeper(name, self._log_folder, self._zygote.address))
        warmest = sorted(self._keepers, key=lambda keeper: keeper.started_at)
        return WarmPlacement(warmest[:workers])

    def pids(self) -> list[int]:
        """The agents' processes, those of every placement."""
        return [keeper.pid for keeper in self._keepers]

    @property
    def zygote_pid(self) -> int:
        """The process whose children their launchers are."""
        return self._zygote.pid


class WarmPlacement:
    """A gang's use of warm agents."""

    def __init__(self, keepers: list[AgentKeeper]) -> None:
        self._keepers = keepers

    def start(self, config: dict[str, Any]) -> None:
        for keeper in self._keepers:
            keeper.serve(config)

    def close(self) -> None:
        for keeper in self._keepers:
            keeper.rest()

    def pids(self) -> list[int]:
        """The agents' processes, by place."""
        return [keeper.pid for keeper in self._keepers]

    def pid_of(self, name: str) -> int:
        """The agent's process at a place."""
        return next(keeper.pid for keeper in self._keepers if keeper.name == name)


class DaskPlacement:
    """Agents beside Dask workers: of a cluster on this machine, or of one that exists."""

    def __init__(self, job: TrainJob, zygote: Zygote | None = None) -> None:
        """`zygote`: of this host, for a cluster on this machine, or None for one of its own; ends with the agents."""
        self._job = job
        self._zygote = zygote
        self._stack = contextlib.ExitStack()

    def start(self, config: dict[str, Any]) -> None:
        with _ctrl_c_kept_away():
            self._start(config)

    def _start(self, config: dict[str, Any]) -> None:
        address = self._job.cluster.address
        if address is None:
            zygote = self._zygote or Zygote()  # first: what it imports takes longest
            self._stack.callback(zygote.close)
            config = {**config, "zygote": zygote.address}

        import dask
        from distributed import Client, LocalCluster

        self._stack.enter_context(dask.config.set(_DASK_SETTINGS))
        try:
            if address is None:
                cluster = LocalCluster(
                    n_workers=self._job.cluster.workers,
                    threads_per_worker=1,
                    processes=True,
                    memory_limit=0,  # a worker only holds an agent's pipe; ranks are not its children
                    dashboard_address=None,
                    # Its scheduler serves HTTP all the same: on a free port, as other clusters may have 8787.
                    scheduler_kwargs={"dashboard_address": f"{self._job.cluster.host}:0"},
                    host=self._job.cluster.host,
                    silence_logs=logging.CRITICAL,
                )
                self._stack.callback(cluster.close, timeout=10)
                client = Client(cluster, set_as_default=False)
            else:
                client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
        except RuntimeError as error:
            # From None: the nannies' own tracebacks, of each worker, say the same at length.
            self._stack.close()
            raise UsageError(
                f"the Dask workers on this machine did not start ({error}); if your script calls train() while it is "
                'imported, put the call under `if __name__ == "__main__":`'
            ) from None
        except OSError as error:
            self._stack.close()
            raise UsageError(
                f"cluster.address={address}: no Dask scheduler answers there within {_CONNECT_SECONDS} s; "
                "start one, or leave cluster.address out for a cluster on this machine"
            ) from error
        self._stack.callback(client.close, timeout=5)
        from openclaw_tasks.gang.worker_plugin import AgentPlugin

        plugin = AgentPlugin(config, own_workers=address is None)
        client.register_plugin(plugin, name=plugin.name)
        self._stack.callback(_unregister, client, plugin.name)

    def close(self) -> None:
        self._stack.close()


@contextlib.contextmanager
def _ctrl_c_kept_away() -> Iterator[None]:
    """Threads and processes that the body starts never see SIGINT.

    A terminal sends it to the whole process group. Workers that died of it would take agents and ranks along, while
    the flow still lets them finish their step and flush what is final.
    """
    resource_tracker.ensure_running()  # multiprocessing lets SIGINT through again when it starts this helper
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_DASK_SETTINGS = {
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.no-workers-timeout": "60s",
    "distributed.scheduler.worker-ttl": "30s",
    "distributed.worker.daemon": False,
    "distributed.comm.timeouts.connect": "15s",
}


def _unregister(client: Any, name: str) -> None:
    # A scheduler that is gone has nothing to unregister from; a worker that has just come may not have it yet.
    with contextlib.suppress(OSError, TimeoutError, KeyError):
        client.unregister_worker_plugin(name)
