"""Holders state what they open, and an auditor finds in their statements what the hub had opened beside sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from every_system import made as system
from federation import Rig
from joint_parts import ALL, BOTH, CLIENTS, HOLDERS, KEY, drive, halves, keyed, lying, sent, uploads

from coterie.crypto.roster import sign_roster, signing_key
from coterie.crypto.signing import SigningKey
from coterie.protocol.errors import UserError
from coterie.protocols.openings import Opening, OpeningCount, Statements, check, collected, read, shows_few, stated
from coterie.protocols.threshold import HubKey, open_padded
from coterie.protocols.threshold.halves import signed

pytestmark = pytest.mark.usefixtures("small_ring")
change = msgspec.structs.replace


def of_holders(run: Rig, holders: Sequence[str] = HOLDERS) -> Statements:
    found = collected(run.common.roster, [run.party(name) for name in holders])
    assert found is not None
    return found


def resigned(run: Rig, one: Opening, **other: Any) -> Opening:
    """What this holder signs in place of its statement."""
    false = change(one, **other)
    holder = run.party(false.holder)
    return change(false, signature=signing_key(holder.own).sign(*false.signed(run.common.roster.session)))


@BOTH
def test_each_holder_states_the_senders_that_it_has_added_up(emulated: bool) -> None:
    run = keyed(emulated=emulated, fewest=3)
    assert lying(run, [ALL, ALL], halves(uploads(run))) == [True, True]
    found = of_holders(run)
    assert [(one.holder, one.count, one.round, one.senders, one.weights) for one in found.openings] == [
        (holder, count, 1, CLIENTS, ()) for holder in HOLDERS for count in (1, 2)
    ]
    checked = check([found])
    assert (checked.sums, checked.senders, checked.vectors, checked.scalars) == (1, 5, 0, 0)
    assert (checked.openings, checked.last) == (dict.fromkeys(HOLDERS, 2), dict.fromkeys(HOLDERS, 1))
    assert (checked.faults, checked.unstated) == ([], {})
    assert check([read(msgspec.json.encode(found), "a file")]) == checked


def test_sums_under_joint_pads_are_stated_with_their_weights() -> None:
    run = keyed(emulated=True, pads=True, fewest=2, effective=1.5)
    weights = {name: at for at, name in enumerate(HOLDERS, 1)}
    drive(run, open_padded(HubKey(run.hub, KEY, 1), sent(run), weights=weights))
    checked, one = check([of_holders(run)]), of_holders(run).openings[0]
    assert (one.senders, one.weights, checked.senders, checked.faults) == (HOLDERS, (1, 2, 3, 4), 4, [])
    assert checked.effective == pytest.approx(100 / 30)


def test_the_trial_of_a_key_opens_zero_and_is_not_stated() -> None:
    assert not any(stated(keyed(emulated=False).party(name)) for name in HOLDERS)


Lie = Callable[[Rig, dict[str, Any]], list[bool]]
REFUSED: dict[str, Lie] = {
    "one vector": lambda run, of: lying(run, [{"client/1": 1}], of),
    "fewer senders than announced": lambda run, of: lying(run, [dict.fromkeys(CLIENTS[:4], 1)], of, senders=5),
    "nearly one vector, by weights": lambda run, of: lying(run, [{**ALL, "client/1": 90}], of),
    "vectors of another round": lambda run, of: lying(run, [ALL], of, r=2),
    "vectors that the hub has signed": lambda run, of: lying(
        run, [ALL], {**of, "client/1": replace(signed(run.hub, KEY, of["client/1"], 1), sender="client/1")}
    ),
    "an old vector": lambda run, of: lying(
        run, [ALL], {**halves(uploads(run, 2)), "client/1": of["client/1"]}, r=2
    ),
}  # fmt: skip


@pytest.mark.parametrize("lie", REFUSED)
def test_what_a_holder_refuses_it_does_not_state(lie: str) -> None:
    run = keyed(emulated=False, fewest=3)
    assert REFUSED[lie](run, halves(uploads(run))) == [False]
    assert run.refused
    assert collected(run.common.roster, [run.party(name) for name in HOLDERS]) is None


def test_two_sets_of_holders_open_two_sums_and_their_statements_show_it() -> None:
    """No holder of 2-of-4 sees both, so each alone is right to help."""
    run = keyed(emulated=False, fewest=3, threshold=2, least=2)
    of = halves(uploads(run))
    assert lying(run, [ALL], of, among=HOLDERS[:2]) == [True]
    assert lying(run, [dict.fromkeys(CLIENTS[:4], 1)], of, among=HOLDERS[2:], first=1) == [True]
    for half in (HOLDERS[:2], HOLDERS[2:]):
        assert check([of_holders(run, half)]).faults == []
    both = check([of_holders(run, HOLDERS[:2]), of_holders(run, HOLDERS[2:])])
    assert both.faults == ["round 1, key sum: 2 sums, which together show fewer than 3 vectors"]


def test_a_repeated_attempt_keeps_what_was_stated() -> None:
    run = keyed(emulated=False, fewest=3)
    holder = run.party(HOLDERS[0])
    begun = msgspec.structs.replace(holder.secret.joint)
    assert lying(run, [ALL], halves(uploads(run))) == [True]
    undone, holder.secret.joint = holder.secret.joint, begun
    assert stated(holder) == 0
    holder.joint.lasts(undone)
    assert stated(holder) == 1


def honest(run: Rig) -> Statements:
    """Two rounds, of all holders."""
    for r in (1, 2):
        assert lying(run, [ALL], halves(uploads(run, r)), r=r, first=r) == [True]
    return of_holders(run)


def first(run: Rig, file: Statements, **other: Any) -> Statements:
    """With another first statement, signed by its holder."""
    return change(file, openings=(resigned(run, file.openings[0], **other), *file.openings[1:]))


def more(run: Rig, file: Statements, **other: Any) -> Statements:
    """With another statement of the first holder, signed by it."""
    return change(file, openings=(*file.openings, resigned(run, file.openings[0], count=3, **other)))


OTHER = bytes(32)
LIES: dict[str, tuple[Callable[[Rig, Statements], Statements], str]] = {
    "a single vector": (lambda run, file: first(run, file, senders=CLIENTS[:1]), "a sum of 1 vectors, of fewer than 3"),
    "a vector twice": (lambda run, file: first(run, file, senders=(CLIENTS[0],) * 5), "not on the roster, each once"),
    "a stranger's vector": (lambda run, file: first(run, file, senders=(*CLIENTS, "me")), "not on the roster"),
    "weights that don't fit": (lambda run, file: first(run, file, weights=(1, 2)), "2 weights of 5 vectors"),
    "another attempt, without a sender": (
        lambda run, file: more(run, file, senders=CLIENTS[:4], cipher=OTHER, making=2),
        "round 1, key sum: 2 sums, which together show fewer than 3 vectors",
    ),
    "another attempt, by other weights": (
        lambda run, file: more(run, file, weights=(2, 1, 1, 1, 1), cipher=OTHER),
        "round 1, key sum: 2 sums, which together may show fewer than 3 vectors",
    ),
    "another attempt, by weights of which no combination is of few": (
        lambda run, file: more(run, file, weights=(1, 2, 3, 4, 5), cipher=OTHER),
        "round 1, key sum: 2 sums, which together may show fewer than 3 vectors",
    ),
    "changed after signing": (
        lambda run, file: change(file, openings=(change(file.openings[0], round=7), *file.openings[1:])),
        "the signature is not one of key",
    ),
    "in another's name": (
        lambda run, file: change(file, openings=(change(file.openings[0], holder=HOLDERS[1]), *file.openings[1:])),
        "the signature is not one of key",
    ),
    "one is left out": (lambda run, file: change(file, openings=file.openings[1:]), "some are left out"),
    "an old one under a new number": (
        lambda run, file: change(file, openings=(*file.openings, change(file.openings[0], count=3))),
        "the signature is not one of key",
    ),
    "two by one number": (
        lambda run, file: change(file, openings=(*file.openings, resigned(run, file.openings[0], round=9))),
        "some are left out",
    ),
    "one has nearly all of the sum": (
        lambda run, file: first(run, file, weights=(1, 50, 1, 1, 1)),
        "client/1 has 92.6 % of a sum's weights, more than 90 %",
    ),
    "the last one is left out": (
        lambda run, file: change(file, openings=(file.openings[0], *file.openings[2:])),
        "client/0 has signed that it states 2 openings, and 1 are here",
    ),
    "all of a holder's are left out": (
        lambda run, file: change(file, openings=file.openings[2:]),
        "client/0 has signed that it states 2 openings, and 0 are here",
    ),
    "the last one, and how many there are": (
        lambda run, file: change(
            file, openings=(file.openings[0], *file.openings[2:]), totals=file.totals[1:]
        ),
        "client/0 has not signed how many",
    ),
    "the last one, with a smaller number": (
        lambda run, file: change(
            file,
            openings=(file.openings[0], *file.openings[2:]),
            totals=(change(file.totals[0], count=1), *file.totals[1:]),
        ),
        "client/0, its number of statements: the signature is not one of key",
    ),
    "how many a stranger has made": (
        lambda run, file: change(file, totals=(*file.totals, OpeningCount("me", 1))), "its holder is not on the roster"
    ),
    "of a roster that nobody has signed": (
        lambda run, file: change(file, roster=change(file.roster, entries=file.roster.entries[:-1])),
        "the roster is forged",
    ),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_an_auditor_finds(lie: str) -> None:
    run = keyed(emulated=True, fewest=3)
    change_it, says = LIES[lie]
    faults = check([change_it(run, honest(run))]).faults
    assert len(faults) >= 1
    assert any(says in fault for fault in faults), faults


def test_the_same_statements_again_say_nothing_new() -> None:
    file = honest(keyed(emulated=True, fewest=3))
    assert check([file, file]) == check([file])
    assert check([file]).faults == []


def test_an_older_file_of_a_holder_lacks_what_others_say_it_has_opened() -> None:
    run = keyed(emulated=True, fewest=3)
    assert lying(run, [ALL], halves(uploads(run, 1))) == [True]
    older = of_holders(run, HOLDERS[:1])
    assert lying(run, [ALL], halves(uploads(run, 2)), r=2, first=2) == [True]
    checked = check([older, of_holders(run, HOLDERS[1:])])
    assert (checked.faults, checked.unstated) == ([], {HOLDERS[0]: 1})
    assert checked.last == {HOLDERS[0]: 1, **dict.fromkeys(HOLDERS[1:], 2)}
    newer = check([older, of_holders(run)])
    assert (newer.faults, newer.unstated, newer.openings) == ([], {}, dict.fromkeys(HOLDERS, 2))


def test_files_with_different_keys_of_one_holder_are_found() -> None:
    """The operator has signed both rosters, so each file alone is right."""
    run, operator = keyed(emulated=True, fewest=3), SigningKey.generate()
    honest(run)
    known, file, files = run.common.roster.by_name, of_holders(run, HOLDERS[1:]), []
    for verify_key in (known[HOLDERS[0]].verify_key, known["helper"].verify_key):
        entries = {**known, HOLDERS[0]: change(known[HOLDERS[0]], verify_key=verify_key)}
        roster = sign_roster(tuple(entries.values()), operator, run.common.roster.session)
        files.append(change(file, roster=roster))
    assert [check([one]).faults for one in files] == [[], []]
    (fault,) = check(files).faults
    assert fault.startswith(f"{HOLDERS[0]} has different keys on these rosters")


def test_names_that_no_terminal_can_show_are_refused() -> None:
    run = keyed(emulated=True, fewest=3)
    file = honest(run)
    for strange in ("client/0\x1b[2J", "client/0\nNothing is wrong."):
        for false in (
            change(file, openings=(change(file.openings[0], holder=strange), *file.openings[1:])),
            change(file, openings=(change(file.openings[0], among=(strange,)), *file.openings[1:])),
            change(file, totals=(OpeningCount(strange, 2),)),
        ):
            with pytest.raises(UserError, match="is no name") as caught:
                read(msgspec.json.encode(false), "a file")
            assert str(caught.value).isprintable()


def test_the_auditor_may_ask_for_more_senders_than_holders_do() -> None:
    file = honest(keyed(emulated=True, fewest=3))
    assert len(check([file], 6).faults) == len(file.openings)
    assert check([file], share=0.2).faults == []
    assert len(check([file], share=0.19).faults) == len(file.openings)


def test_statements_of_another_run_are_not_audited_with_these() -> None:
    ours, theirs = (honest(keyed(emulated=True, fewest=3, seed=seed)) for seed in (0, 1))
    with pytest.raises(UserError, match="of different runs"):
        check([ours, theirs])
    mixed = check([change(ours, openings=(*ours.openings, *theirs.openings))])
    assert len(mixed.faults) == len(theirs.openings)
    with pytest.raises(UserError, match="holds no statements"):
        read(b'{"roster": 1}', "a file")


@pytest.mark.parametrize(
    ("case", "sums", "vectors"),
    [
        (("ofl", "paper", {"clusters": 2}), 2, 0),
        (("ofl", "hardened", {"clusters": 2}), 2, 0),
        (("ofl", "paper", {"clusters": 2, "mechanism": "distributed", "missing": 0}), 2, 0),
        (("mingledpie", "hardened", {"clusters": 2, "hardening": "uploads", "keys": "threshold"}), 2, 0),
        (("pafed", "paper", {"participation": 1.0, "keys": "threshold"}), 0, 1),
        (("own_page:SYSTEM", "paper", {"keys": "threshold"}), 2, 0),
        (("own_page:SYSTEM", "paper", {"keys": "threshold", "pads": False}), 2, 0),
    ],
    ids=str,
)
def test_honest_rounds_of_every_system_with_shares_have_statements_without_fault(
    case: Any, sums: int, vectors: int
) -> None:
    run = system(case)
    run.rounds(2)
    found = collected(run.common.roster, map(run.party, run.common.clients))
    assert found is not None
    checked = check([found])
    assert (checked.faults, checked.unstated) == ([], {})
    assert (checked.sums, checked.vectors) == (sums, vectors)
    assert (checked.senders or 2) >= 2
    if case[:2] == ("ofl", "paper") and "mechanism" not in case[2]:
        assert checked.scalars > 0


def test_a_combination_of_four_sums_is_found() -> None:
    """No three of these sums show fewer than five vectors; all four do."""
    sums = [{1, 3, 4, 5, 7, 8}, {2, 3, 4, 6, 8}, {0, 3, 5, 6, 7}, {0, 1, 2, 3, 4, 6, 7}]
    assert [shows_few(list(map(frozenset, sums[:k])), 5) for k in (1, 2, 3, 4)] == [False, False, False, True]
