"""What holders of key shares state that they have opened, signed, and what an auditor finds in these statements.

A holder keeps its statements (``state``) in every attempt of a round, and signs how many they are (``OpeningCount``).
``check`` finds what no holder sees alone: sums of several holders or attempts that together show few vectors. See
docs/threshold_use.md.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from math import comb
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

import coterie.protocol.core as fl
from coterie.aggregation.detection import effective
from coterie.crypto.roster import check_roster, signing_key
from coterie.crypto.signing import Field, VerifyKey


def shows_few(sums: Iterable[Iterable[Hashable]], fewest: int) -> bool:
    """Whether a combination of these sums is of fewer vectors than this, but not none, or they are too many to say. It
    errs by True with 2^-500.
    """
    of = list(dict.fromkeys(map(frozenset, sums)))
    together = Counter(tuple(vector in vectors for vectors in of) for vector in frozenset[Hashable]().union(*of))
    counts = [*together.values()]  # of vectors that occur in the same sums: a column stands for all of them
    rare = [at for at, count in enumerate(counts) if count < fewest]
    if len(of) > _MOST_SUMS or comb(len(rare), fewest - 1) > _MOST:
        return True
    # A combination is of some vectors alone if what is orthogonal to all sums is dependent at these vectors.
    orthogonal = _orthogonal([[int(there) for there in row] for row in zip(*together, strict=True)], fewest - 1)

    def dependent(first: int, few: int, before: list[tuple[int, list[int]]]) -> bool:
        for number in range(first, len(rare)):
            if (count := counts[rare[number]]) >= few:
                continue
            rest = orthogonal[rare[number]]
            for at, row in before:
                rest = [(a - rest[at] * b) % _PRIME for a, b in zip(rest, row, strict=True)]
            at = next((at for at, value in enumerate(rest) if value), -1)
            if at < 0:
                return True
            inverse = pow(rest[at], -1, _PRIME)
            row = [value * inverse % _PRIME for value in rest]
            if dependent(number + 1, few - count, [*before, (at, row)]):
                return True
        return False

    return dependent(0, fewest, [])


def _orthogonal(rows: list[list[int]], count: int) -> list[list[int]]:
    # By column, its values in so many random vectors that are orthogonal to the rows.
    pivots = dict[int, list[int]]()  # by column, a row that has 1 there, and 0 at the others' columns
    for row in rows:
        for at, other in pivots.items():
            row = [(a - row[at] * b) % _PRIME for a, b in zip(row, other, strict=True)]
        if (at := next((at for at, value in enumerate(row) if value), -1)) >= 0:
            inverse = pow(row[at], -1, _PRIME)
            row = [value * inverse % _PRIME for value in row]
            for of, other in pivots.items():
                pivots[of] = [(a - other[at] * b) % _PRIME for a, b in zip(other, row, strict=True)]
            pivots[at] = row
    rng, columns = np.random.default_rng(0), range(len(rows[0]) if rows else 0)
    free = {at: [int.from_bytes(rng.bytes(65)) % _PRIME for _ in range(count)] for at in columns if at not in pivots}
    return [
        free[at]
        if at in free
        else [-sum(pivots[at][of] * v[k] for of, v in free.items()) % _PRIME for k in range(count)]
        for at in columns
    ]


class Opening(fl.State, frozen=True):
    """A holder's statement of one opening that it has helped with.

    count: its statements so far, with this one.  cipher: 32 bytes that name what was opened.
    senders, weights: whose vectors the holder has added up itself; no weights: 1 each. Without senders these are
    ``ciphers`` ciphertexts on the hub's word, of ``length`` values each.
    part: which of the senders' vectors of the round.  fewest: of a sum that it helps with.  signature: over all of this
    and the session.
    """

    holder: str
    count: int
    key: str
    making: int
    round: int
    cipher: bytes
    length: int
    among: tuple[str, ...]
    fewest: int
    senders: tuple[str, ...] = ()
    weights: tuple[int, ...] = ()
    part: int = 0
    ciphers: int = 1
    signature: bytes = b""

    def signed(self, session: bytes) -> Iterator[Field]:
        yield from ("opening", session)
        for name in self.__struct_fields__[:-1]:
            value = getattr(self, name)
            yield "\n".join(map(str, value)) if isinstance(value, tuple) else value

    @property
    def by_sender(self) -> dict[str, int]:
        return dict(zip(self.senders, self.weights or [1] * len(self.senders), strict=True))

    @property
    def where(self) -> str:
        return f"{self.holder}, statement {self.count}, round {self.round}"


class OpeningCount(fl.State, frozen=True):
    """signature: over the rest and the session."""

    holder: str
    count: int
    signature: bytes = b""

    def signed(self, session: bytes) -> Iterator[Field]:
        yield from ("openings stated", session, self.holder, self.count)

    @property
    def where(self) -> str:
        return f"{self.holder}, its number of statements"


class Stated(fl.SecretStruct, kw_only=True):
    openings: list[bytes] = fl.field(default_factory=list)


def stating(kind: type[fl.Party]) -> list[str]:
    return [name for name, component in kind.parts.items() if issubclass(component.Secret, Stated)]


def state(
    party: Any, secret: Stated, among: Collection[str], weights: Mapping[str, int] = MappingProxyType({}), **facts: Any
) -> None:
    """Sign and keep a statement, with a bit for each party of the roster in place of names. facts: the rest of
    ``Opening``.
    """
    names, roster = tuple(party.common.roster.by_name), party.common.roster
    there, senders = ([name in some for name in names] for some in (set(among), weights))
    opening = Opening(
        holder=party.name,
        count=stated(party) + 1,
        among=tuple(compress(names, there)),
        senders=tuple(compress(names, senders)),
        weights=tuple(weights[name] for name in compress(names, senders)) if set(weights.values()) - {1} else (),
        **facts,
    )
    signature = signing_key(party.own).sign(*opening.signed(roster.session))
    brief = fl.changed(opening, among=(), senders=(), signature=signature)
    kept = brief, *(np.packbits(bits).tobytes() for bits in (there, senders))
    secret.openings = [*secret.openings, msgspec.msgpack.encode(kept)]


def on_word(lengths: Sequence[int], ciphers: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    """Of ciphertexts that a holder opens on the hub's word, one statement a length."""
    for length in sorted(set(lengths)):
        some = [data for of, data in zip(lengths, ciphers, strict=True) if of == length]
        yield {"cipher": hashlib.sha256(fl.bundle(some)).digest(), "length": length, "ciphers": len(some)}


def stated(party: Any) -> int:
    return sum(len(getattr(party, name).secret.openings) for name in stating(type(party)))


def total(party: Any) -> OpeningCount:
    said = OpeningCount(party.name, stated(party))
    signature = signing_key(party.own).sign(*said.signed(party.common.roster.session))
    return fl.changed(said, signature=signature)


def statements(party: Any) -> Iterator[Opening]:
    names = tuple(party.common.roster.by_name)
    for data in (data for name in stating(type(party)) for data in getattr(party, name).secret.openings):
        brief, *bits = msgspec.msgpack.decode(data, type=tuple[Opening, bytes, bytes])
        among, senders = (tuple(compress(names, np.unpackbits(np.frombuffer(some, np.uint8)))) for some in bits)
        yield fl.changed(brief, among=among, senders=senders)


# ---- what an auditor does

MOST_SHARE = 0.9
"""One sender's most of a sum's weights: with more its vector is opened nearly alone."""
_MOST = 1 << 16  # combinations of a round's vectors that are tried
_PRIME = 2**521 - 1
_MOST_SUMS = 180  # determinants of so many rows of 0 and 1 are below the prime (Hadamard), so ranks are exact


class Statements(fl.State, frozen=True):
    """Of one or several holders, for an auditor.

    roster: of the run; a very large simulation's is unsigned, and has only those that open and send.
    """

    roster: fl.Roster
    openings: tuple[Opening, ...]
    totals: tuple[OpeningCount, ...] = ()


class Checked(fl.State, frozen=True):
    """What is wrong with statements, in words, and what they state.

    operator: hexadecimal, of the key that has signed the roster, or "".  last: by holder, the round of its last
    statement: of later openings these files say nothing.
    sums: with senders that holders have verified.  effective: the least effective number of senders.
    vectors, scalars: opened on the hub's word.  unstated: by a holder that others name, openings that its own
    statements lack.
    """

    operator: str
    openings: dict[str, int]
    last: dict[str, int]
    sums: int
    senders: int | None
    effective: float | None
    vectors: int
    scalars: int
    unstated: dict[str, int]
    faults: list[str]


def collected(roster: fl.Roster, parties: Iterable[Any]) -> Statements | None:
    holders = [party for party in parties if stated(party)]
    found = tuple(one for party in holders for one in statements(party))
    if not found:
        return None
    if not roster.signature:
        names = sorted({name for one in found for name in (*one.among, *one.senders)})
        entries = tuple(fl.Entry(*msgspec.structs.astuple(roster.by_name[name])) for name in names)
        roster = fl.Roster(roster.session, entries, roster.operator)
    return Statements(roster, found, tuple(map(total, holders)))


def read(data: bytes, where: object) -> Statements:
    """Statements from a file, unchecked. Raises UserError."""
    try:
        found = msgspec.json.decode(data, type=Statements)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise fl.UserError(f"{where} holds no statements of openings: {error}") from None
    names = [one.name for one in found.roster.entries] + [one.holder for one in found.totals]
    names += [name for one in found.openings for name in (one.holder, one.key, *one.among, *one.senders)]
    if strange := next((name for name in names if not name.isprintable()), None):
        raise fl.UserError(f"{where} holds no statements of openings: {strange!r:.80} is no name")
    return found


def check(files: Sequence[Statements], fewest: int = 0, share: float = MOST_SHARE) -> Checked:
    """Raises UserError for several runs.

    fewest: senders of a sum; 0 for what the holders state.  share: most of a sum's weights that one sender may have.
    """
    roster, faults = files[0].roster, list[str]()
    if any((file.roster.session, file.roster.operator) != (roster.session, roster.operator) for file in files):
        raise fl.UserError("these statements are of different runs, or of different operators: audit each run alone")
    if not any(file.openings for file in files):
        faults.append("there are no statements")
    if len(files) > 1 and not all(file.roster.signature for file in files):
        faults.append("a roster is not signed, so anybody can have made its statements")
    faults += _other_keys(files)
    signed = [one for file in files for one in _genuine(file, faults)]
    good = list({one.signature: one for one in signed if isinstance(one, Opening)}.values())
    by_holder = Counter(one.holder for one in good)
    faults += _left_out(good, [one for one in signed if isinstance(one, OpeningCount)])
    sums = [one for one in good if one.senders]
    for one in sums:
        if len(one.senders) < (few := fewest or one.fewest):
            faults.append(f"{one.where}: a sum of {len(one.senders)} vectors, of fewer than {few}")
        heaviest, weights = max(one.by_sender, key=one.by_sender.__getitem__), one.by_sender
        if weights[heaviest] > share * sum(weights.values()):
            has = f"{100 * weights[heaviest] / sum(weights.values()):.3g} %"
            faults.append(f"{one.where}: {heaviest} has {has} of a sum's weights, more than {100 * share:.3g} %")
    faults += _together(sums, fewest)
    on_word = {(one.key, one.round, one.cipher): one for one in good if not one.senders}.values()
    return Checked(
        roster.operator.hex() if roster.signature else "",
        dict(by_holder),
        {holder: max(one.round for one in good if one.holder == holder) for holder in by_holder},
        len({(one.key, one.round, one.cipher) for one in sums}),
        min((len(one.senders) for one in sums), default=None),
        min((effective([*one.by_sender.values()]) for one in sums), default=None),
        sum(one.ciphers for one in on_word if one.length > 1),
        sum(one.ciphers for one in on_word if one.length == 1),
        _unstated(good),
        faults,
    )


def _other_keys(files: Sequence[Statements]) -> Iterator[str]:
    keys: dict[str, set[bytes]] = {}
    for one in (one for file in files for one in file.roster.entries):
        keys.setdefault(one.name, set()).add(one.verify_key)
    for name, different in keys.items():
        if len(different) > 1:
            which = ", ".join(sorted(key.hex()[:8] for key in different))
            yield f"{name} has different keys on these rosters, {which}: somebody else may have signed in its name"


def _left_out(good: Sequence[Opening], totals: Sequence[OpeningCount]) -> Iterator[str]:
    counts, most = Counter(one.holder for one in good), dict[str, int]()
    for one in totals:
        most[one.holder] = max(one.count, most.get(one.holder, 0))
    for holder in dict.fromkeys([*counts, *most]):
        numbers, said = sorted(one.count for one in good if one.holder == holder), most.get(holder)
        if numbers != [*range(1, len(numbers) + 1)]:
            yield f"{holder} states {len(numbers)} openings, not numbered from 1 to {len(numbers)}: some are left out"
        elif said is None:
            yield f"{holder} has not signed how many openings it states, so the last ones may be left out"
        elif len(numbers) < said:
            yield f"{holder} has signed that it states {said} openings, and {len(numbers)} are here: some are left out"


def _genuine(file: Statements, faults: list[str]) -> Iterator[Opening | OpeningCount]:
    roster = file.roster
    try:
        if roster.signature:
            check_roster(roster, roster.operator)
    except fl.PeerError as error:
        faults.append(f"the roster is forged: {error}")
        return
    claims: list[Opening | OpeningCount] = [*file.openings, *file.totals]
    for one in claims:
        try:
            if one.holder not in roster.by_name:
                raise fl.PeerError("its holder is not on the roster")
            VerifyKey.load(roster.by_name[one.holder].verify_key).verify(one.signature, *one.signed(roster.session))
            if isinstance(one, Opening):
                _check_opening(one, roster)
        except fl.PeerError as error:
            faults.append(f"{one.where}: {error}")
        else:
            yield one


def _check_opening(one: Opening, roster: fl.Roster) -> None:
    if not set(one.senders) <= set(roster.by_name) or len(set(one.senders)) < len(one.senders):
        raise fl.PeerError("its senders are not on the roster, each once")
    if min(one.length, one.ciphers) < 1 or one.fewest < bool(one.senders):
        raise fl.PeerError("a number below 1")
    if one.weights and (len(one.weights) != len(one.senders) or min(one.weights) < 1):
        raise fl.PeerError(f"{len(one.weights)} weights of {len(one.senders)} vectors, or one below 1")


def _together(sums: Sequence[Opening], fewest: int) -> list[str]:
    # Of sums by whoever opened in any attempt. A sender's vectors of a round are one.
    found, of = list[str](), dict[tuple[str, int, int], dict[tuple[Any, ...], Opening]]()
    for one in sums:
        of.setdefault((one.key, one.round, one.part), {})[tuple(sorted(one.by_sender.items()))] = one
    for (key, r, _), each in of.items():
        few, senders = fewest or max(one.fewest for one in each.values()), [set(one.senders) for one in each.values()]
        said = f"round {r}, key {key}: {len(each)} sums, which together"
        alike = len({tuple(name in some for some in senders) for name in set().union(*senders)})
        if len(each) == 1:
            continue
        if comb(alike, few - 1) > _MOST:
            found.append(f"{said} are too many to say what they show")
        elif any(one.weights for one in each.values()):
            found.append(f"{said} may show fewer than {few} vectors, being weighted differently")
        elif shows_few(senders, few):
            found.append(f"{said} show fewer than {few} vectors")
    return found


def _unstated(good: Sequence[Opening]) -> dict[str, int]:
    own = {(one.holder, one.key, one.round, one.cipher) for one in good}
    named = {(name, one.key, one.round, one.cipher) for one in good for name in one.among}
    return dict(Counter(name for name, *_ in named - own))
