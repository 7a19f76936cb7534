"""Ranks as threads of the test's process, each with a mesh of its own: quick, over real sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from openclaw_tasks.collectives.mesh import Listener, Mesh

TOKEN = b"a token of thirty-two bytes 12345"
SECONDS = 30.0  # a deadline that only a hang reaches

Result = TypeVar("Result")


def in_threads(calls: list[Callable[[], Result]]) -> list[Result | BaseException]:
    """What each call returned or raised, all of them running at once."""
    results: list[Result | BaseException | None] = [None] * len(calls)

    def run(index: int) -> None:
        try:
            results[index] = calls[index]()
        except BaseException as error:  # noqa: BLE001  a thread's outermost loop: the test looks at it
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results  # type: ignore[return-value]


def all_well(results: list[Result | BaseException]) -> list[Result]:
    """The results; raises the first error among them."""
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value]


class Gang:
    """`size` meshed ranks, one a thread whenever `run` is called."""

    def __init__(self, size: int, generation: int = 1) -> None:
        self.listeners = [Listener() for _ in range(size)]
        self.meshes: list[Mesh] = []
        try:
            self.meshes = all_well(self.join(generation))
        finally:
            if not self.meshes:
                self.close()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [(listener.host, listener.port) for listener in self.listeners]

    def join(self, generation: int) -> list[Mesh | BaseException]:
        ranks = range(len(self.listeners))
        return in_threads([lambda rank=rank: self.join_as(rank, generation) for rank in ranks])

    def join_as(self, rank: int, generation: int) -> Mesh:
        return Mesh.connect(self.listeners[rank], rank, self.addresses, generation, TOKEN, SECONDS)

    def run(self, call: Callable[[Mesh], Result]) -> list[Result | BaseException]:
        return in_threads([lambda mesh=mesh: call(mesh) for mesh in self.meshes])

    def close(self) -> None:
        for mesh in self.meshes:
            mesh.close()
        for listener in self.listeners:
            listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
