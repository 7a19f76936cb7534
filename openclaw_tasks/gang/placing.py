"""Where agents run: on this machine directly, or on Dask workers. Dask places agents and does nothing else."""

from __future__ import annotations

import asyncio
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
        self._keepers: list[AgentKeeper] = []

    def start(self, config: dict[str, Any]) -> None:
        folder = Path(config["log_folder"])
        self._keepers = [AgentKeeper(f"local-{number}", folder) for number in range(self._workers)]
        for keeper in self._keepers:
            keeper.serve(config)

    def close(self) -> None:
        _close_all(self._keepers)


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
        self._keepers: list[AgentKeeper] = []

    def __enter__(self) -> WarmAgents:
        return self

    def __exit__(self, *_: object) -> None:
        _close_all(self._keepers)

    def placement(self, workers: int) -> WarmPlacement:
        """A placement on `workers` agents, those that have been up longest; starts what is not there yet."""
        while len(self._keepers) < workers:
            self._keepers.append(AgentKeeper(f"warm-{len(self._keepers)}", self._log_folder))
        warmest = sorted(self._keepers, key=lambda keeper: keeper.started_at)
        return WarmPlacement(warmest[:workers])

    def pids(self) -> list[int]:
        """The agents' processes, those of every placement."""
        return [keeper.pid for keeper in self._keepers]


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


class DaskPlacement:
    """Agents beside Dask workers: of a cluster on this machine, or of one that exists."""

    def __init__(self, job: TrainJob) -> None:
        self._job = job
        self._stack = contextlib.ExitStack()

    def start(self, config: dict[str, Any]) -> None:
        with _ctrl_c_kept_away():
            self._start(config)

    def _start(self, config: dict[str, Any]) -> None:
        import dask
        from distributed import Client, LocalCluster

        self._stack.enter_context(dask.config.set(_DASK_SETTINGS))
        address = self._job.cluster.address
        try:
            if address is None:
                cluster = LocalCluster(
                    n_workers=self._job.cluster.workers,
                    threads_per_worker=1,
                    processes=True,
                    memory_limit=0,  # a worker only holds an agent's pipe; ranks are not its children
                    dashboard_address=None,
                    host=self._job.cluster.host,
                    silence_logs=logging.CRITICAL,
                )
                self._stack.callback(cluster.close, timeout=10)
                client = Client(cluster, set_as_default=False)
            else:
                client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
        except OSError as error:
            self._stack.close()
            raise UsageError(
                f"cluster.address={address}: no Dask scheduler answers there within {_CONNECT_SECONDS} s; "
                "start one, or leave cluster.address out for a cluster on this machine"
            ) from error
        self._stack.callback(client.close, timeout=5)
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


def _plugin_base() -> type:
    from distributed import WorkerPlugin

    return WorkerPlugin


class AgentPlugin(_plugin_base()):  # type: ignore[misc]
    """Holds an agent beside each Dask worker. Travels through the scheduler, so it carries no secret: the agent reads
    the run's token from the file that `config` names."""

    def __init__(self, config: dict[str, Any], *, own_workers: bool) -> None:
        self._config = config
        self._own_workers = own_workers
        self._keeper: AgentKeeper | None = None
        self.name = f"openclaw-{config['name']}"

    def setup(self, worker: Any) -> None:
        """Start the agent; a worker that the nanny has restarted comes here again."""
        if self._own_workers:
            # As `_ctrl_c_kept_away` says; also what came while the worker started is forgotten by this.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._keeper = AgentKeeper(str(worker.name), Path(self._config["log_folder"]))
        self._keeper.serve(self._config)

    async def teardown(self, worker: Any) -> None:
        """End the agent with its worker."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await asyncio.to_thread(keeper.close)


def _unregister(client: Any, name: str) -> None:
    # A scheduler that is gone has nothing to unregister from; a worker that has just come may not have it yet.
    with contextlib.suppress(OSError, TimeoutError, KeyError):
        client.unregister_worker_plugin(name)
