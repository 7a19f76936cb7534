"""A small world that the recovery machine's instructions drive: agents, lines that take time, ranks that mesh and step.

The ranks read their orders with the real `Orders`, decide with the real `decide`, and otherwise follow
`training/rank.py` and `training/join.py` move by move, as generators that yield wherever a real rank would wait.
What is modelled instead of run: processes, sockets, and the gradient (a step's work is a number that goes up by one).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from openclaw_tasks.gang.ranks import formation_message
from openclaw_tasks.recovery import machine
from openclaw_tasks.recovery.machine import Phase
from openclaw_tasks.training.facts import RankFacts, decide
from openclaw_tasks.training.orders import Dismissed, Formation, FormationChanged, Orders

NOTHING = -1
SHARDS = 8
LATEST_SECONDS = 0.06  # no message takes longer; the machine's blame_seconds is longer than two of them
MESH_SECONDS = 30.0
EXCHANGE_SECONDS = 60.0

Life = Iterator[None]


class Parked(Exception):
    """A rank waits for an order and none has come."""


class LinkBroken(Exception):
    def __init__(self, blamed: list[int]) -> None:
        super().__init__(blamed)
        self.blamed = blamed


class Line:
    """The rank's end of its control line, as `Orders` reads it."""

    def __init__(self) -> None:
        self.inbox: deque[dict[str, Any]] = deque()

    def receive(self, timeout_seconds: float | None = 0.0) -> tuple[dict[str, Any], list[int]] | None:
        if self.inbox:
            return self.inbox.popleft(), []
        if timeout_seconds:
            raise Parked
        return None


class StillPage:
    """Nobody watches this rank's progress."""

    def beat(self) -> None: ...


@dataclass
class Mesh:
    """What the members of one generation have sent each other. A label names an exchange."""

    members: tuple[int, ...]
    posts: dict[tuple[Any, ...], dict[int, Any]] = field(default_factory=dict)
    pending: dict[int, tuple[Any, ...]] = field(default_factory=dict)  # the exchange a member is in
    closed: set[int] = field(default_factory=set)
    undelivered: set[tuple[int, int, tuple[Any, ...]]] = field(default_factory=set)  # (from, to, label)
    cut: set[frozenset[int]] = field(default_factory=set)

    def close(self, member: int, lost_mask: int) -> None:
        """`member` is out. Who gets what it was just sending is a matter of chance: bit i of the mask, for peer i."""
        if member in self.closed:
            return
        self.closed.add(member)
        label = self.pending.pop(member, None)
        if label is not None:
            for index, peer in enumerate(self.members):
                if lost_mask >> index & 1:
                    self.undelivered.add((member, peer, label))


class Rank:
    """One rank process. `life` mirrors `training.rank.Rank.run`."""

    def __init__(self, world: World, number: int, agent: Agent) -> None:
        self.world, self.number, self.agent = world, number, agent
        self.line = Line()
        self.orders = Orders(self.line, StillPage())  # type: ignore[arg-type]
        self.step = NOTHING
        self.held_since = 0.0  # when it told last that it holds the state
        self.applied: list[int] = []
        self.finishing = False
        self.left = False
        self.alive = True
        self.hung = False
        self.generation = 0
        self.mesh: Mesh | None = None
        self.breathe_first = False  # chance: whether it looks at its orders before at what its peers sent
        self.life = self._live()

    def say(self, kind: str, **facts: Any) -> None:
        self.agent.say(kind, member=self.number, **facts)

    def _live(self) -> Life:
        yield
        self.say("ready")
        while True:
            formation = yield from self._next_formation()
            try:
                if (yield from self._serve(formation)):
                    return
            except FormationChanged:
                continue
            except LinkBroken as broken:
                self.say("broken", generation=formation.generation, blamed=broken.blamed)
            finally:
                assert self.mesh is not None
                self.mesh.close(self.number, self.world.lost_mask)

    def _next_formation(self) -> Iterator[None]:
        while True:
            try:
                return self.orders.next_formation()
            except Parked:
                yield

    def _breathe(self) -> None:
        self.orders.breathe()

    def _serve(self, formation: Formation) -> Iterator[None]:
        self.generation = formation.generation
        self.mesh = self.world.mesh_of(formation)
        yield from self._exchange(("mesh",), None, MESH_SECONDS)
        standings = yield from self._exchange(("standings",), (self.step, self.finishing), EXCHANGE_SECONDS)
        self.finishing = any(finishing for _, finishing in standings.values())
        newest = max(step for step, _ in standings.values())
        source = next(n for n in formation.members if standings[n][0] == newest)
        behind = [n for n in formation.members if n != source and (standings[n][0] < newest or newest == NOTHING)]
        if self.number == source:
            if newest == NOTHING:
                self.step = self.world.first_state(self)
            self._post(("state",), self.step)
            self.mesh.pending.pop(self.number)
        elif self.number in behind:
            received = yield from self._exchange(("state",), None, 600.0, only=source)
            if self.step == received[source] - 1:
                yield from self._wait_a_moment()
            self._take(received[source])
        self.held_since = self.world.now
        self.say("meshed", generation=formation.generation, step=self.step)
        return (yield from self._train(formation))

    def _wait_a_moment(self) -> Life:
        yield
        self._breathe()

    def _take(self, step: int) -> None:
        self.step = step

    def _train(self, formation: Formation) -> Iterator[None]:
        while not self.finishing and self.step < self.world.total_steps:
            self.orders.leave_if_replaced()
            heard, stop = self.orders.heard, self.orders.stop
            step = self.step + 1
            yield
            self._breathe()
            begun = self.world.begin_step(formation.generation)
            yield from self._exchange(("reduce", step), None, EXCHANGE_SECONDS)
            mine = RankFacts({}, True, heard, stop)
            facts = yield from self._exchange(("gather", step), mine, EXCHANGE_SECONDS)
            decision = decide([facts[n] for n in formation.members], formation.generation)
            self.world.note_applied(self, step, formation.generation, begun)
            self.step = step
            self.applied.append(step)
            if formation.rank == 0:
                self.say("step", generation=formation.generation, step=step)
            if decision.stop:
                self.finishing = True
            elif decision.next_generation is not None:
                self.orders.change_to(decision.next_generation)
                return False
        self.finishing = True
        yield from self._exchange(("barrier", self.step), None, EXCHANGE_SECONDS)
        self.left = True
        self.say("left")
        return True

    def _post(self, label: tuple[Any, ...], payload: Any) -> None:
        assert self.mesh is not None
        self.mesh.posts.setdefault(label, {})[self.number] = payload
        self.mesh.pending[self.number] = label

    def _exchange(
        self, label: tuple[Any, ...], payload: Any, seconds: float, only: int | None = None
    ) -> Iterator[None]:
        """Send to all and receive from all (or `only` from one): what each of them sent under this label."""
        mesh = self.mesh
        assert mesh is not None
        since = self.world.now
        if only is None:
            self._post(label, payload)
        peers = [n for n in mesh.members if n != self.number] if only is None else [only]
        while True:
            if self.breathe_first:
                self._breathe()
            posts = mesh.posts.get(label, {})
            missing = []
            for peer in peers:
                is_cut = frozenset((self.number, peer)) in mesh.cut or self.world.is_cut(self.number, peer)
                has_come = peer in posts and (peer, self.number, label) not in mesh.undelivered and not is_cut
                if not has_come:
                    missing.append(peer)
                if not has_come and label != ("mesh",) and (peer in mesh.closed or is_cut):
                    raise LinkBroken([peer])
                if not has_come and label == ("mesh",) and peer in mesh.closed and peer in posts:
                    raise LinkBroken([peer])
            if not missing:
                break
            if self.world.now - since > seconds:
                is_expected = mesh.cut or self.world.cuts or not self.world.is_calm
                assert is_expected, f"member {self.number} waited {seconds} s for {missing}"
                raise LinkBroken(missing)
            self._breathe()
            yield
        if only is None:
            mesh.pending.pop(self.number, None)
        return {peer: mesh.posts[label][peer] for peer in peers} | {self.number: payload}


@dataclass
class Agent:
    name: str
    world: World
    alive: bool = True
    ranks: dict[int, Rank] = field(default_factory=dict)
    to_supervisor: deque[tuple[float, str, dict[str, Any]]] = field(default_factory=deque)
    to_agent: deque[tuple[float, str, dict[str, Any]]] = field(default_factory=deque)

    def say(self, kind: str, **facts: Any) -> None:
        if self.alive:
            self.to_supervisor.append((self.world.now, kind, facts))

    def obey(self, kind: str, facts: dict[str, Any]) -> None:
        number = facts["member"]
        if kind == "start":
            self.ranks[number] = Rank(self.world, number, self)
        elif kind == "kill" and number in self.ranks:
            self.world.kill_rank(self.ranks[number], "killed by its agent")
        elif kind == "to-rank" and number in self.ranks:
            self.ranks[number].line.inbox.append(facts["message"])


class World:
    """Everything but chance: every choice comes in as an argument or is a field that the driver sets."""

    def __init__(self, workers: int, total_steps: int = 1_000_000) -> None:
        self.now = 100.0
        self.total_steps = total_steps
        policy = machine.Policy(workers, SHARDS)
        self.state = machine.State(policy, assembling_since=self.now)
        self.agents: dict[str, Agent] = {}
        self.meshes: dict[int, Mesh] = {}
        self.formations: dict[int, machine.Formation] = {}
        self.fed: list[machine.Event] = []
        self.lost_mask = 0
        self.cuts: set[frozenset[str]] = set()  # pairs of agents that cannot reach each other
        self.durable = 0
        self.newest_applied = 0  # of the lineage since the last start
        self.trained_generation = 0
        self.clock_of_steps = 0
        self.trained_at: dict[int, int] = {}  # generation -> when its first step was applied
        self.has_trained = False  # since the last start
        self.is_calm = False
        self.log: list[str] = []

    # What may happen

    def add_agent(self) -> Agent:
        agent = Agent(f"agent-{len(self.agents)}", self)
        self.agents[agent.name] = agent
        self.feed(machine.AgentJoined(agent.name))
        return agent

    def kill_rank(self, rank: Rank, cause: str = "rank killed by signal 9") -> None:
        if not rank.alive:
            return
        self.log.append(f"{rank.number} dies in {rank.generation} at {rank.step}")
        rank.alive = False
        for mesh in self.meshes.values():
            if rank.number in mesh.members:
                mesh.close(rank.number, self.lost_mask)
        del rank.agent.ranks[rank.number]
        rank.agent.say("exited", member=rank.number, left=rank.left, cause=cause)

    def kill_agent(self, agent: Agent, unsent: int = 0) -> None:
        """An agent dies with its ranks; the last `unsent` things it said never arrive."""
        for _ in range(min(unsent, len(agent.to_supervisor))):
            agent.to_supervisor.pop()
        agent.say("end")
        agent.alive = False
        for rank in list(agent.ranks.values()):
            self.kill_rank(rank)
        agent.to_agent.clear()

    def silence_agent(self, agent: Agent) -> None:
        """The supervisor gives an agent up whose ranks go on for a while."""
        agent.alive = False
        agent.to_agent.clear()
        agent.to_supervisor.clear()
        self.feed(machine.AgentLost(agent.name, self.now))

    def report_hung(self, rank: Rank) -> None:
        rank.agent.say("hung", member=rank.number)

    def break_link(self, generation: int, one: int, other: int) -> None:
        if generation in self.meshes and one != other:
            self.meshes[generation].cut.add(frozenset((one, other)))

    def resume(self, rank: Rank, breathe_first: bool = False) -> None:
        """The rank runs until it waits again."""
        if not rank.alive or rank.hung:
            return
        rank.breathe_first = breathe_first
        try:
            next(rank.life)
        except StopIteration:
            self.kill_rank(rank)
        except Dismissed:
            self.kill_rank(rank)

    def deliver_up(self, agent: Agent) -> None:
        """The supervisor reads the next thing that an agent said."""
        if agent.to_supervisor:
            _, kind, facts = agent.to_supervisor.popleft()
            self._hear(agent, kind, facts)

    def deliver_down(self, agent: Agent) -> None:
        if agent.to_agent:
            _, kind, facts = agent.to_agent.popleft()
            agent.obey(kind, facts)

    def tick(self, seconds: float) -> None:
        """Time goes on; what has been under way for long arrives first."""
        self.now += seconds
        for agent in list(self.agents.values()):
            while agent.to_supervisor and agent.to_supervisor[0][0] + LATEST_SECONDS <= self.now:
                self.deliver_up(agent)
            while agent.to_agent and agent.to_agent[0][0] + LATEST_SECONDS <= self.now:
                self.deliver_down(agent)
        self.feed(machine.Tick(self.now))

    def restart(self) -> None:
        """The stage's retry: what was final is in storage by now."""
        self.durable = max(self.durable, self.newest_applied - 1)
        self.newest_applied = self.durable
        self.feed(machine.Restarted(self.now))

    # The supervisor

    def _hear(self, agent: Agent, kind: str, facts: dict[str, Any]) -> None:
        member = facts.get("member", -1)
        match kind:
            case "ready":
                if self.state.member(member) is not None:
                    self.feed(machine.RankReady(member, ("127.0.0.1", 1000 + member)))
            case "meshed":
                self.feed(machine.Meshed(member, facts["generation"]))
            case "step":
                self.feed(machine.StepDone(facts["generation"]))
            case "broken":
                for blamed in facts["blamed"]:
                    self.feed(machine.LinkBroken(member, facts["generation"], blamed, self.now))
            case "left":
                self.feed(machine.RankLeft(member))
            case "hung":
                self.feed(machine.RankHung(member, "hung", self.now))
            case "exited":
                if facts["left"]:
                    self.feed(machine.RankLeft(member))
                elif self.state.member(member) is not None:
                    self.feed(machine.RankGone(member, facts["cause"], self.now))
            case "end":
                self.feed(machine.AgentLost(agent.name, self.now))

    def feed(self, event: machine.Event) -> None:
        if not isinstance(event, machine.Tick):
            self.fed.append(event)
            self.log.append(f"> {event}")
        before = self.state
        self.state, instructions = machine.advance(before, event)
        for instruction in instructions:
            self.log.append(f"< {instruction}")
            self._carry_out(before, event, instruction)

    def _carry_out(self, before: machine.State, event: machine.Event, instruction: machine.Instruction) -> None:
        match instruction:
            case machine.StartRank(agent, member):
                self._tell(agent, "start", {"member": member})
            case machine.KillRank(member, agent):
                self._tell(agent, "kill", {"member": member})
            case machine.Announce(formation):
                self._announce(formation)
            case machine.TellStop(members):
                for member in members:
                    self._tell(member.agent, "to-rank", {"member": member.number, "message": {"type": "stop"}})
            case machine.ReportLost() if not isinstance(event, machine.GaveUp):
                heirs = self.holders_of_state(before, event)
                assert not heirs, f"lost, though members {heirs} hold a state"
            case machine.ReportLost() | machine.ReportEnded():
                pass

    def _announce(self, formation: machine.Formation) -> None:
        assert formation.generation not in self.formations, "a generation is announced once"
        assert formation.members, "a formation has members"
        self.formations[formation.generation] = formation
        if formation.cause == "start":
            self.has_trained = False
        inside = self.state.active.members if self.state.active else ()
        for member in formation.members:
            message = formation_message(
                formation,
                member.number,
                newcomer=formation.when == "boundary" and member not in inside,
                restore_step=None,
                kill_at=None,
                strikes={},
                holds=[],
                stop=self.state.stopping,
            )
            self._tell(member.agent, "to-rank", {"member": member.number, "message": message})

    def _tell(self, agent: str, kind: str, facts: dict[str, Any]) -> None:
        if self.agents[agent].alive:
            self.agents[agent].to_agent.append((self.now, kind, facts))

    # What ranks need to know of each other, and what must hold

    def mesh_of(self, formation: Formation) -> Mesh:
        return self.meshes.setdefault(formation.generation, Mesh(formation.members))

    def is_cut(self, one: int, other: int) -> bool:
        places = {rank.number: rank.agent.name for rank in self.ranks()}
        return one in places and other in places and frozenset((places[one], places[other])) in self.cuts

    def first_state(self, rank: Rank) -> int:
        if self.state.member(rank.number) is not None:
            assert not self.has_trained, f"member {rank.number} begins at {self.durable} in the middle of a lineage"
        return self.durable

    def begin_step(self, generation: int) -> int:
        self.clock_of_steps += 1
        return self.clock_of_steps

    def note_applied(self, rank: Rank, step: int, generation: int, begun: int) -> None:
        assert step == rank.step + 1
        if self.state.member(rank.number) is not None:
            self.has_trained = True
            self.clock_of_steps += 1
            self.trained_at.setdefault(generation, self.clock_of_steps)
            self.newest_applied = max(self.newest_applied, step)
            newer = [at for other, at in self.trained_at.items() if other > generation]
            assert all(begun < at for at in newer), (
                f"member {rank.number} began step {step} in generation {generation} after a newer one had trained"
            )

    def ranks(self) -> list[Rank]:
        return [rank for agent in self.agents.values() for rank in agent.ranks.values()]

    def holders_of_state(self, state: machine.State, event: machine.Event) -> list[int]:
        """Members that have told of their state in time, other than those whose loss is the event."""
        return [
            rank.number
            for rank in self.ranks()
            if rank.step != NOTHING
            and rank.held_since + LATEST_SECONDS <= self.now
            and rank.number != getattr(event, "member", None)
            and rank.agent.name != getattr(event, "agent", None)
            and rank.agent.alive
            and not rank.hung
            and not rank.left
            and state.member(rank.number) is not None
            and state.phase is Phase.RUNNING
        ]

    # Much at once

    def move_all(self, forwards: bool = True) -> None:
        """One message each way of each agent, one move of each rank, in one order or the other."""
        direction = 1 if forwards else -1
        for agent in list(self.agents.values())[::direction]:
            self.deliver_up(agent)
            self.deliver_down(agent)
        for rank in self.ranks()[::direction]:
            self.resume(rank)

    def calm_down(self, rounds: int, done: Callable[[], bool]) -> bool:
        """Nothing bad happens any more: everything goes on in turn until `done`."""
        self.is_calm = True
        for _ in range(rounds):
            if done():
                return True
            moved = False
            for agent in list(self.agents.values()):
                moved = moved or bool(agent.to_supervisor or agent.to_agent)
                while agent.to_supervisor:
                    self.deliver_up(agent)
                while agent.to_agent:
                    self.deliver_down(agent)
                for rank in list(agent.ranks.values()):
                    if rank.hung or not agent.alive:
                        # Found frozen by its agent, or ended at its lease.
                        if agent.alive and self.state.member(rank.number) is not None:
                            self.report_hung(rank)
                        else:
                            self.kill_rank(rank)
                        continue
                    before = rank.step, rank.generation
                    self.resume(rank)
                    moved = moved or (rank.step, rank.generation) != before
            self.tick(0.1 if moved else 5.0)
            if self.state.phase is Phase.LOST:
                self.restart()
        return done()
