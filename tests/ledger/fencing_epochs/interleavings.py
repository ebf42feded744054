"""Run several actors on one store, in every order that their requests to it can take.

An actor is a plain function on a Store: a greenlet that is suspended before each request. `explore`
visits every state that any order of requests and crashes leads to, each once: two orders that leave
the same objects, and gave each actor the same answers, are one state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from greenlet import greenlet

from prefect_bt.errors import ObjectExists, ObjectNotFound, StateError
from prefect_bt.object_store.protocols import ObjectInfo

CRASH = "crash"


@dataclass
class World:
    """State that all actors see: the objects, and the hosts that run a gang."""

    objects: dict[str, bytes] = field(default_factory=dict)
    gangs: dict[str, int] = field(default_factory=dict)
    """Host -> the epoch in which its gang was launched."""
    broken: list[str] = field(default_factory=list)
    """Sentences about broken invariants."""


class Store:
    """Store with the methods that records need. Each step is a request that others can affect."""

    url = "memory://"

    def __init__(self, world: World, actor: Actor) -> None:
        self._world, self._actor = world, actor

    def get(self, key: str) -> bytes:
        # No step: what is read here was listed before, and is never written again.
        if key not in self._world.objects:
            self._actor.heard(key, "none")
            raise ObjectNotFound(key)
        self._actor.heard(key, self._world.objects[key])
        return self._world.objects[key]

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        return self.get(key)[start : start + length]

    def put(self, key: str, data: bytes) -> None:
        self._actor.pause()
        self._world.objects[key] = data

    def create(self, key: str, data: bytes) -> None:
        self._actor.pause()
        taken = key in self._world.objects
        self._actor.heard(key, taken)
        if taken:
            raise ObjectExists(key)
        self._world.objects[key] = data

    def delete(self, key: str) -> None:
        self._actor.pause()
        self._world.objects.pop(key, None)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._actor.pause()
        keys = sorted(key for key in self._world.objects if key.startswith(f"{prefix}/"))
        self._actor.heard(prefix, tuple(keys))
        return iter([ObjectInfo(key, len(self._world.objects[key]), 0.0) for key in keys])


Script = Callable[["World", "Actor"], None]


class Actor:
    """One process on one host. `after`: the actor whose crash lets this one start."""

    def __init__(self, host: str, script: Script, *, after: Actor | None = None) -> None:
        self.host, self.after = host, after
        self.over = self.crashed = False
        self.refused = ""
        self._script, self._learned, self._steps = script, 0, 0
        self._self: greenlet | None = None
        self._nonces = 0

    def begin(self, world: World) -> None:
        self.store = Store(world, self)
        self._self = greenlet(lambda: self._run(world))

    def _run(self, world: World) -> None:
        try:
            self._script(world, self)
        except StateError as error:
            self.refused = error.message
        self.over = True

    def pause(self) -> None:
        """Let any other actor go first."""
        assert self._self is not None
        self._steps += 1
        self._self.parent.switch()

    def heard(self, *answer: object) -> None:
        self._learned = hash((self._learned, answer))

    def new_nonce(self) -> str:
        self._nonces += 1
        return f"{id_of(self)}-{self._nonces}"

    @property
    def may_step(self) -> bool:
        begins = self.after is None or self.after.crashed
        return begins and not self.over and not self.crashed

    def step(self) -> None:
        assert self._self is not None
        self._self.switch()

    def crash(self) -> None:
        self.crashed = True

    @property
    def has_started(self) -> bool:
        return self._steps > 0

    def state(self) -> object:
        return self._steps, self._learned, self.over, self.crashed


def id_of(actor: Actor) -> str:
    return f"{actor.host}{'' if actor.after is None else '-again'}"


@dataclass(frozen=True)
class Scene:
    """A world and its actors, created again for each run."""

    make: Callable[[], tuple[World, Sequence[Actor]]]
    crashes: bool = True
    at_rest: Callable[[World, Sequence[Actor]], str] = lambda world, actors: ""
    """Function that returns what is wrong once no actor has anything left to do."""


Choice = tuple[int, str]


def explore(scene: Scene) -> tuple[int, str]:
    """Return the number of states, and the first broken invariant with the order that breaks it."""
    seen: set[int] = set()
    waiting: list[tuple[Choice, ...]] = [()]
    while waiting:
        path = waiting.pop()
        world, actors = replay(scene, path)
        while True:
            if world.broken:
                return len(seen), f"{world.broken[0]}: {path}"
            state = _state(world, actors)
            if state in seen:
                break
            seen.add(state)
            choices = list(_choices(scene, actors))
            resting = all(kind == CRASH for _, kind in choices)
            if resting and (wrong := scene.at_rest(world, actors)):
                return len(seen), f"{wrong}: {path}"
            if not choices:
                break
            waiting += [(*path, choice) for choice in choices[1:]]
            path = (*path, choices[0])
            _take(actors, choices[0])
    return len(seen), ""


def _state(world: World, actors: Sequence[Actor]) -> int:
    objects, gangs = sorted(world.objects.items()), sorted(world.gangs.items())
    return hash((tuple(objects), tuple(gangs), tuple(actor.state() for actor in actors)))


def replay(scene: Scene, path: Sequence[Choice]) -> tuple[World, Sequence[Actor]]:
    world, actors = scene.make()
    for actor in actors:
        actor.begin(world)
    for choice in path:
        _take(actors, choice)
    return world, actors


def _take(actors: Sequence[Actor], choice: Choice) -> None:
    index, kind = choice
    actors[index].crash() if kind == CRASH else actors[index].step()


def _choices(scene: Scene, actors: Sequence[Actor]) -> Iterator[Choice]:
    for index, actor in enumerate(actors):
        if actor.may_step:
            yield index, "step"
    if scene.crashes:
        for index, actor in enumerate(actors):
            if actor.may_step and actor.has_started and actor.after is None:
                yield index, CRASH
