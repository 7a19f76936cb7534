"""Train the job whose JSON stands on standard input, on a gang of this process's own: for tests that kill it."""

from __future__ import annotations

import json
import sys

from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.gang.placing import LocalPlacement
from openclaw_tasks.gang.plain_run import train_plainly


def main() -> None:
    job = TrainJob.parse(json.load(sys.stdin))
    report = train_plainly(job, LocalPlacement(job.cluster.workers), prove=False)
    print(report.to_json())


if __name__ == "__main__":
    main()
