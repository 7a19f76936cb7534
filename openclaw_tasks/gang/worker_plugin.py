"""What a Dask worker holds: an agent beside it. Loaded in every worker, so it imports little."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

from distributed import WorkerPlugin

from openclaw_tasks.gang.keeper import AgentKeeper


class AgentPlugin(WorkerPlugin):
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
        self._keeper = AgentKeeper(str(worker.name), Path(self._config["log_folder"]), self._config.get("zygote"))
        self._keeper.serve(self._config)

    async def teardown(self, worker: Any) -> None:
        """End the agent with its worker."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await asyncio.to_thread(keeper.close)
