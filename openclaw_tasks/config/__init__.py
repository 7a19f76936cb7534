"""What a user decides about a run. Light: nothing here imports torch, numpy, Prefect or Dask."""

from __future__ import annotations

from openclaw_tasks.config.faults import Fault, parse_fault, parse_faults
from openclaw_tasks.config.home import home, run_folder
from openclaw_tasks.config.job import TrainJob

__all__ = ["Fault", "TrainJob", "home", "parse_fault", "parse_faults", "run_folder"]
