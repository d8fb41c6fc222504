"""Parties: each holds only what it may hold, and receives only what it is sent.

Between messages a party keeps only its ``state`` and ``secret``, two ``msgspec.Struct``s, from whose bytes and its
set-up info it can be rebuilt.

A handler is a transaction on a fork of both, which replaces them if it returns. Arrays, tuples, frozen structs and
dataclasses are shared with the fork, so they must hold nothing that can change (``check_forks``).
"""

from __future__ import annotations

import copy
import hashlib
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache, wraps
from operator import is_
from typing import Any, ClassVar, Self, TypeVar, cast

import msgspec
import numpy as np
from msgspec import inspect
from numpy.typing import NDArray

from coterie.protocol.effects import Effect, Evaluate, Fit, Losses
from coterie.protocol.errors import PeerError
from coterie.protocol.messages import ANY, HUB, Message, forms
from coterie.protocol.randomness import Derived, Secrets
from coterie.protocol.setup_info import Common, Own

T = TypeVar("T")
Work = Generator[Any, Any, T]
"""A handler's or coordinator's body: yields effects (a coordinator also steps), returns a T."""


@dataclass(frozen=True)
class Cost:
    """Nominal work, in virtual seconds by the device's profile. A coordinator may yield it (``spend``).

    samples: training samples times epochs.  flops_per_sample: of the model.  crypto_s: on the reference core.
    """

    samples: float = 0.0
    flops_per_sample: float = 0.0
    crypto_s: float = 0.0


@dataclass(frozen=True)
class To:
    """To a named party. A handler that does more than answer returns a tuple."""

    dst: str
    message: Message


Outcome = Message | To | tuple[To, ...] | None
"""Of a handler: an answer, addressed messages, or nothing."""


When = Callable[[Any, str], bool]
"""Of a config and a mode: whether a message is sent then."""


def always(config: Any, mode: str) -> bool:
    return True


def never(config: Any, mode: str) -> bool:
    return False


@dataclass(frozen=True)
class Handler:
    run: Callable[..., Any]
    cost: Callable[[Any, Any], Cost]
    answers: tuple[type[Message], ...] = ()
    when: When = always


def on(
    kind: type[Message],
    cost: Callable[[Any, Any], Cost] = lambda *_: Cost(),
    *,
    answers: type[Message] | tuple[type[Message], ...] = (),
    when: When = always,
) -> Callable[[T], T]:
    """Mark ``method(self, message, src)``, a function or a generator of effects, as the handler of one message type.

    cost: its nominal work, of the party and the message, by committed state.  answers: the types that it returns.
    when: with which settings it is asked. What each role sees follows.
    """

    sent = answers if isinstance(answers, tuple) else (answers,)
    for one in (kind, *sent):
        forms(one)

    def mark(method: T) -> T:
        taken: Any = _from_hub(method) if kind.SRC == HUB else method
        taken.__handles__ = kind, Handler(taken, cost, sent, when)
        return cast(T, taken)

    return mark


def _from_hub(method: Any) -> Callable[..., Any]:
    @wraps(method)
    def taken(self: Any, message: Message, src: str) -> Any:
        if src != getattr(self, "party", self).common.roster.hub:
            raise PeerError(f"a {type(message).__name__} from {src}; only the hub may send one")
        return method(self, message, src)

    return taken


class Nothing(msgspec.Struct):
    pass


@dataclass(frozen=True)
class FromParty:
    make: Callable[[Any], Any]


def from_party(make: Callable[[Any], Any]) -> Any:
    """The default of a state's field, by the party's name, set-up info or config."""
    return FromParty(make)


initial = from_party(lambda party: party.common.initial if party.own.starts is None else party.own.starts[0])
"""(d,) float32, the first model's initial weights."""

initials = from_party(lambda party: party.starts)
"""(k, d) float32, all models'."""

zeros = from_party(lambda party: np.zeros(party.spec.size, np.float32))


class SecretStruct(msgspec.Struct):
    """Of what a party keeps secret: shown by its type alone."""

    def __repr__(self) -> str:
        return f"<{type(self).__qualname__}>"


class Component:
    """A part of a party, such as keys: handlers (methods under ``on``), a secret, messages that a coordinator takes,
    and set-up.

    ``keys = Keys(...)`` in the body of a party's class gives every such party ``party.keys``, with itself as ``party``,
    and ``party.secret.keys``, of the type that the class annotates as its ``secret``.  when: with which settings its
    handlers are asked.  LASTS: the fields of the secret that ``lasts`` takes over.
    """

    Secret: ClassVar[type[msgspec.Struct]] = Nothing
    LASTS: ClassVar[tuple[str, ...]] = ()
    handlers: ClassVar[dict[type[Message], Handler]] = {}
    takes: ClassVar[tuple[type[Message], ...]] = ()
    party: Any
    name: str
    when: When = staticmethod(always)

    def __init__(self, when: When = always) -> None:
        self.when = when

    def is_asked(self, kind: type[Message], config: Any, mode: str) -> bool:
        return self.when(config, mode)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.handlers = _inherited(cls, "handlers") | _declared(cls)
        cls.LASTS = _joined(cls)
        of = vars(cls).get("__annotations__", {}).get("secret", "Any")
        if of != "Any" and "Secret" not in vars(cls):
            found = vars(sys.modules[cls.__module__]).get(of) if isinstance(of, str) else of
            if found is None:
                raise TypeError(f"{cls.__name__}: 'secret: {of}' names no type of its module; say Secret = ... instead")
            cls.Secret = found

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.name = name

    def __get__(self, party: Any, owner: type[Any] | None = None) -> Self:
        if party is None:
            return self
        bound = object.__new__(type(self))
        bound.__dict__.update(self.__dict__, party=party)
        return bound

    @property
    def secret(self) -> Any:
        return getattr(self.party.secret, self.name)

    def setup(self) -> Work[None]:
        yield from ()

    def lasts(self, secret: Any) -> None:
        """As ``Party.lasts``. secret: this component's until now."""
        _take_over(self.LASTS, self.secret, secret)

    def follows(self, former: Any) -> None:
        """As ``Party.follows``.  former: this component's secret in a former run."""


def _take_over(names: Iterable[str], own: Any, before: Any) -> None:
    for name in names:
        setattr(own, name, getattr(before, name))


def _joined(cls: type[Any]) -> tuple[str, ...]:
    """``LASTS`` of a class and its bases."""
    return tuple(dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base).get("LASTS", ())))


def _inherited(cls: type[Any], name: str) -> dict[Any, Any]:
    tables = [vars(base).get(name, {}) for base in reversed(cls.__mro__)]
    return {key: entry for table in tables for key, entry in table.items()}


def _declared(cls: type[Any]) -> dict[type[Message], Handler]:
    marked = [method for method in vars(cls).values() if hasattr(method, "__handles__")]
    return dict(method.__handles__ for method in marked)


def _of_component(name: str, component: Component, kind: type[Message]) -> Handler:
    handler = component.handlers[kind]
    return replace(
        handler,
        run=lambda party, *given: handler.run(getattr(party, name), *given),
        cost=lambda party, message: handler.cost(getattr(party, name), message),
        when=lambda config, mode: component.is_asked(kind, config, mode) and handler.when(config, mode),
    )


_fields = lru_cache(maxsize=None)(msgspec.structs.fields)


class Party:
    """Base of all parties. ``class Client(Party, role="client")`` names the role.

    A subclass is made by ``Client(own, common, config)``. ``also=("leader",)`` names further roles whose messages it
    handles and sends.

    State, Secret: structs of which each party has its own, made with it if all fields have defaults, perhaps
    ``from_party``.  takes: messages that a coordinator may take in a later round than they arrived in.  parts:
    ``Component``s by name.
    """

    role: ClassVar[str]
    roles: ClassVar[frozenset[str]]
    handlers: ClassVar[dict[type[Message], Handler]] = {}
    takes: ClassVar[tuple[type[Message], ...]] = ()
    parts: ClassVar[dict[str, Component]] = {}
    State: type[msgspec.Struct] = Nothing
    Secret: type[msgspec.Struct] = Nothing
    LASTS: ClassVar[tuple[str, ...]] = ()
    state: Any
    secret: Any
    frozen: tuple[Any, Any] = None, None  # the state and secret that are known to be read-only

    def __init_subclass__(cls, role: str | None = None, also: tuple[str, ...] = (), **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if role is not None:
            cls.role, cls.roles = role, frozenset({role, *also})
        own = {name: value for name, value in vars(cls).items() if isinstance(value, Component)}
        new = {
            kind: _of_component(name, component, kind) for name, component in own.items() for kind in component.handlers
        } | _declared(cls)
        for kind in new:
            if kind.DST != ANY and kind.DST not in cls.roles:
                raise TypeError(f"{cls.__name__} ({cls.role}) handles {kind.__name__}, which is for {kind.DST}")
        cls.handlers, cls.LASTS = _inherited(cls, "handlers") | new, _joined(cls)
        cls.parts = _inherited(cls, "parts") | own
        taken = [kind for component in cls.parts.values() for kind in component.takes]
        cls.takes = tuple(dict.fromkeys((*cls.takes, *taken)))
        lacking = [
            (name, component.Secret, msgspec.field(default_factory=component.Secret))
            for name, component in cls.parts.items()
            if component.Secret is not Nothing and name not in cls.Secret.__struct_fields__
        ]
        if lacking:
            shows_nothing = {"__repr__": lambda secret: f"<{cls.__qualname__}.Secret>"}
            cls.Secret = msgspec.defstruct("Secret", lacking, bases=(cls.Secret,), namespace=shows_nothing)

    common: Common  # unset if the party got no common knowledge
    config: Any

    def __init__(self, own: Own, common: Common | None = None, config: Any = None) -> None:
        self.own, self.name, self.randomness = own, own.name, own.randomness
        self.samples, self.epochs = own.samples, own.epochs
        if common is not None:
            self.common, self.spec, self.clients = common, common.spec, common.clients
        self.config = config
        self.now_s = 0.0  # this party's clock, set by the transport before a handler runs
        self.state, self.secret = self._built(self.State), self._built(self.Secret)

    @property
    def starts(self) -> NDArray[np.float32]:
        """(k, d) float32, the models that it begins with."""
        return self.common.starts if self.own.starts is None else self.own.starts

    def last_starts(self) -> NDArray[np.float32] | None:
        """(k, d) float32, with which it can begin a further run; None without models."""
        return None

    @property
    def kept_back(self) -> str:
        """Why it kept its model in its last round, or added nothing to others', or "". For its own home alone: it can
        show who is in a group.
        """
        return ""

    def _built(self, struct: type[msgspec.Struct]) -> msgspec.Struct:
        check_forks(struct)
        fields = _fields(struct)
        if any(one.required for one in fields):  # a subclass fills it in its own constructor
            return Nothing()
        made = {one.name: one.default.make(self) for one in fields if isinstance(one.default, FromParty)}
        return struct(**made)

    def rng(self, purpose: str, round: int = 0) -> np.random.Generator:
        """Experimental randomness, which follows the seed."""
        return self.randomness.rng(self.name, purpose, round)

    def secrets(self, purpose: str, round: int = 0) -> Secrets:
        """Secret randomness, from the operating system in real runs."""
        return self.randomness.secrets(self.name, purpose, round)

    def kept(self, purpose: str, of: bytes, round: int = 0) -> Secrets:
        """Secret randomness for noise on the values ``of``, all that it is added to: equal values get equal noise,
        others independent noise.

        In emulated runs, and without an identity, it is that of ``secrets``.
        """
        if self.randomness.emulated or self.own.identity is None:
            return self.secrets(purpose, round)
        session = self.common.roster.session if hasattr(self, "common") else b""
        keyed = hashlib.blake2b(key=self.own.identity.signing, digest_size=32, person=b"coterie noise/1")
        for field in (session, self.name.encode(), purpose.encode(), round.to_bytes(8, "little"), of):
            keyed.update(len(field).to_bytes(8, "little") + field)
        return Derived(keyed.digest())

    def nominal(self, effect: Effect) -> Cost:
        """An effect's nominal work on own data, by the model's shape."""
        # A training passes forwards and backwards; a forward pass is a third of that.
        passes = 0.0
        if isinstance(effect, Fit):
            passes = effect.epochs
        elif isinstance(effect, Evaluate | Losses):
            passes = np.atleast_2d(effect.weights).shape[0] / 3
        return Cost(self.samples * passes, self.spec.flops_per_sample) if passes else Cost()

    def setup(self) -> Work[None]:
        """The hub's steps before round 1; by default its parts'."""
        for name in self.parts:
            yield from getattr(self, name).setup()

    def lasts(self, state: Any, secret: Any) -> None:
        """Take over what must survive when a round is tried again, such as a record of opened ciphertexts: by default
        the fields named in ``LASTS``, and the parts'.

        Called on the state and secret of the round's beginning, with the later ones.
        """
        public = [name for name in self.LASTS if name in self.state.__struct_fields__]
        _take_over(public, self.state, state)
        _take_over([name for name in self.LASTS if name not in public], self.secret, secret)
        for name, component in self.parts.items():
            if component.Secret is not Nothing:
                getattr(self, name).lasts(getattr(secret, name))

    @property
    def remembers(self) -> bool:
        """Whether a part must know of former runs on the same data (``follows``)."""
        parts = (part for part in self.parts.values() if type(part).follows is not Component.follows)
        return any(part.when(self.config, self.common.mode) for part in parts)

    def follows(self, former: Party) -> None:
        """Take over what must survive in a further run on the same data.  former: this party at a run's end."""
        for name, component in former.parts.items():
            if type(self.parts.get(name)) is type(component) and component.Secret is not Nothing:
                getattr(self, name).follows(getattr(former.secret, name))

    @property
    def finishes(self) -> bool:
        return type(self).finish is not Party.finish

    def finish(self) -> Work[Any]:
        """The hub's steps after the last round; none by default. The run waits until all messages are handled, so
        ``post`` will do.
        """
        yield from ()

    def __repr__(self) -> str:
        return f"<{self.role} {self.name}>"


_PLAIN = frozenset({bool, int, float, str, bytes, type(None)})  # values that neither change nor hold others


_LONE = _PLAIN | {tuple, frozenset, np.ndarray}


def fork(value: T) -> T:
    """A copy with its own dicts, lists, sets and Structs at any depth."""
    if type(value) in _LONE:
        return value
    if isinstance(value, dict):
        changed = copy.copy(value)
        if not _LONE.issuperset(map(type, value.values())):
            changed.update((key, fork(item)) for key, item in value.items())
        return changed
    if isinstance(value, list):
        return copy.copy(value) if _LONE.issuperset(map(type, value)) else type(value)(map(fork, value))
    if isinstance(value, msgspec.Struct):
        if value.__struct_config__.frozen:
            return value
        twin = copy.copy(value)
        for name in value.__struct_fields__:
            part = getattr(value, name)
            if type(part) not in _LONE:
                setattr(twin, name, fork(part))
        return twin
    return copy.copy(value) if isinstance(value, set) else value


@cache
def check_forks(struct: type[msgspec.Struct]) -> None:
    """Raises TypeError for a state that ``fork`` would not copy as a whole. Any is not seen."""
    if shared := next(_shared(inspect.type_info(struct), struct.__qualname__, False, set()), None):
        raise TypeError(
            f"{shared} could change in a handler that raises, and stay so: in a tuple, frozen struct or dataclass of a "
            "state use tuples and frozen structs"
        )


def _shared(kind: Any, where: str, inside: bool, known: set[tuple[Any, bool]]) -> Iterator[str]:
    cls: Any = getattr(kind, "cls", None)
    if (cls, inside) in known:
        return
    dataclass_ = isinstance(kind, inspect.DataclassType)
    frozen = isinstance(kind, inspect.StructType) and cls.__struct_config__.frozen
    frozen = frozen or (dataclass_ and cls.__dataclass_params__.frozen)
    if (inside or dataclass_) and isinstance(kind, _CHANGES) and not frozen:
        yield f"{where} ({(cls or type(kind)).__name__})"
        return
    inside = inside or frozen or isinstance(kind, _SHARED)
    if fields := getattr(kind, "fields", ()):
        known.add((cls, inside))
    parts = [(f"{where}.{field.name}", field.type) for field in fields]
    of = [getattr(kind, name, None) for name in ("type", "item_type", "key_type", "value_type")]
    of += [*getattr(kind, "item_types", ()), *getattr(kind, "types", ())]
    for place, part in [*parts, *((where, one) for one in of if one is not None)]:
        yield from _shared(part, place, inside, known)


_CHANGES = (inspect.ListType, inspect.DictType, inspect.SetType, inspect.StructType, inspect.DataclassType)
_SHARED = (inspect.TupleType, inspect.VarTupleType, inspect.FrozenSetType, inspect.NamedTupleType)


def unchanged(old: Any, new: Any) -> bool:
    """Whether a fork equals its original; arrays by identity."""
    if old is new and type(old) in _PLAIN:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, msgspec.Struct):
        return all(unchanged(getattr(old, name), getattr(new, name)) for name in old.__struct_fields__)
    if isinstance(old, dict):
        return old.keys() == new.keys() and all(unchanged(value, new[key]) for key, value in old.items())
    if isinstance(old, list | tuple):
        return len(old) == len(new) and all(map(unchanged, old, new))
    return old is new or (not isinstance(old, np.ndarray) and bool(old == new))


def freeze(value: Any) -> None:
    """Make a state's arrays read-only, at any depth."""
    if isinstance(value, np.ndarray):
        value.setflags(write=False)
        return
    held: Collection[Any] = ()
    if isinstance(value, list | tuple):
        held = value
    elif isinstance(value, dict):
        held = value.values()
    elif isinstance(value, msgspec.Struct):
        held = msgspec.structs.astuple(value)
    if not _PLAIN.issuperset(map(type, held)):
        for item in held:
            if type(item) not in _PLAIN:
                freeze(item)


@contextmanager
def transaction(party: Party) -> Iterator[tuple[Any, Any]]:
    """Commits the party's changes at the block's end, or undoes them if it raises. Yields state and secret before."""
    saved = party.state, party.secret
    if not all(map(is_, saved, party.frozen)):
        freeze(saved)
    try:
        party.state, party.secret = fork(party.state), fork(party.secret)
        yield saved
        party.frozen = party.state, party.secret
        freeze(party.frozen)
    except BaseException:
        party.state, party.secret = saved
        raise
