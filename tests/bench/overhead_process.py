"""A Python process that is asked, and answers, in lines of JSON on its standard input and output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, Self

from openclaw_tasks.gang.zygote import RANK_VARIABLES

Answer = dict[str, Any]


class AskedProcess:
    """Starts `python -m MODULE`, which calls `answer_all`; ends it with the body."""

    def __init__(self, module: str, variables: Mapping[str, str] = RANK_VARIABLES) -> None:
        """`variables` of its environment decide how memory and threads are used: a rank's own by default."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **variables},
            text=True,
        )

    def tell(self, what: str, **how: Any) -> None:
        """Ask for what `answer` then gives."""
        assert self._process.stdin is not None
        print(json.dumps({"what": what, **how}), file=self._process.stdin, flush=True)

    def answer(self) -> Answer:
        """The next answer. Raises RuntimeError when the process has died."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} has died; what it said is above")
        answer: Answer = json.loads(line)
        return answer

    def ask(self, what: str, **how: Any) -> Answer:
        """Tell, and wait for the answer."""
        self.tell(what, **how)
        return self.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def answer_all(answer: Callable[..., Answer]) -> None:
    """Answer each request by `answer(what, **how)`, until there are no more."""
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), flush=True)
