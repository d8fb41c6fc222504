"""Settings of sums of hidden groups (``hidden_sums``): their grid, their noise, and when a round shows too few."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import lru_cache
from math import comb
from typing import Annotated, Literal

import coterie.protocol.core as fl
from coterie.crypto.shared_rows import Grid
from coterie.dp.budget import Budgeted
from coterie.dp.gaussian import noise_multiplier
from coterie.dp.ledger import Release
from coterie.protocols.late import LateTraining
from coterie.protocols.local_training import sample_size
from coterie.protocols.noise import affords

LITTLE_NOISE = 0.005
RISK = 1e-6
UPDATE = "update, in sums of a hidden group"
COUNTS = "label counts, in a sum of a hidden group"


@dataclass(frozen=True)
class HiddenSums(LateTraining, Budgeted):
    """Settings of local training, and of sums in hidden groups.

    clip: C, the L2 norm to which a client's change is clipped; running statistics are clipped by themselves.
    fewest: the fewest clients whose changes a group's sum may hold; a sum of none is allowed. A round is skipped if so
    many are absent that some group could have fewer.
    min_cluster: the smallest group.
    foundings: how often groups may be made, the set-up included. They are made anew for all when 8 or more of those
    with a place have come or left since the last time; one group of all (clusters=1) never is. Above 1 a run can begin
    with the models of a former one.
    budget_s: seconds that a client's answer should take. Slower ones are asked in turn, and only so many left out that
    no group's sum can be of fewer than ``fewest``. None to ask all.
    check: of an upload, "tag" that it changes one group alone, or "norm" that it is also as short as clip allows.
    noise: standard deviation, over C, of the Gaussian noise that each server adds to a row's sum in every round; None
    for what ``epsilon`` asks for, or .005, which weakens differencing and protects by no proof worth its name.
    """

    clip: fl.Positive = 2.0
    fewest: Annotated[int, fl.Meta(ge=1)] = 2
    min_cluster: Annotated[int, fl.Meta(ge=1)] = 3
    foundings: Annotated[int, fl.Meta(ge=1, le=64)] = 1
    budget_s: fl.Positive | None = None
    check: Literal["tag", "norm"] = "tag"

    def grid(self, clients: int, spec: fl.ModelSpec) -> Grid:
        """Raises UserError for more clients, weights or noise than fit the words."""
        parts = 1 + bool(spec.buffers.any())
        return Grid.of(self.clip, clients, spec.size, parts, self._noise(1.1 * parts**0.5))

    def noise_on(self, grid: Grid) -> float:
        """The standard deviation of each server's noise, in steps of an upload of weight 1."""
        return self._noise(grid.longest / grid.steps) * grid.steps

    def _noise(self, longest: float) -> float:
        """Over C. longest: the most that a client's words may be long, over C."""
        if self.noise is None and self.epsilon is not None:
            return 2 * longest * noise_multiplier(self.epsilon, self.dp_delta, self.private_rounds)
        return LITTLE_NOISE if self.noise is None else self.noise

    def release(self, grid: Grid, r: int = 0, *, whole: bool = False) -> Release:
        """An upload's, in a sum with the noise of one server: the other may know its own. whole: of a whole model."""
        noise, sensitivity = self.noise_on(grid), 2 * grid.longest
        if not noise or whole:
            return Release(UPDATE, round=r)
        return Release(
            UPDATE,
            "gaussian",
            noise / sensitivity,
            sensitivity * grid.clip / grid.steps,
            "replace one client",
            r,
            against=("hub", "helper", "other clients"),
        )

    def affords(self, grid: Grid, uploads: int) -> bool:
        """Whether the budget has room for one more upload, or label counts, after so many."""
        return affords(self.budget(), self.release(grid), uploads)

    def counts_noise(self, grid: Grid) -> float:
        """The standard deviation of each server's noise on label counts, over the most that a client may count."""
        # a client's counts add up to at most 1, so its replacement moves them by at most sqrt(2)
        return float(2**0.5 * self.noise_on(grid) / (2 * grid.longest))

    def counts_release(self, grid: Grid) -> Release:
        """A client's label counts, in the sum of its group."""
        one = self.release(grid)
        return replace(one, what=COUNTS, sensitivity_l2=None if one.sensitivity_l2 is None else 2**0.5)

    def may_leave_out(self, clients: int, groups: int) -> int:
        """How many absences leave no group with fewer than ``fewest``, whoever chooses them."""
        return max(0, (clients if groups <= 1 else min(self.min_cluster, clients)) - self.fewest)

    def shows_few(self, clients: int, added: int, groups: int) -> str:
        """As the function ``shows_few``, also of those that ``budget_s`` leaves out."""
        if self.budget_s is not None and added and clients - added > self.may_leave_out(clients, groups):
            return f"{added} uploads of {clients} clients: those left out may leave fewer than {self.fewest} in a group"
        return shows_few(clients, added, groups, self.min_cluster, self.fewest)

    def expected(self, clients: int) -> int:
        return sample_size(clients, self.participation)


def renews(config: HiddenSums, mode: str) -> bool:
    return config.foundings > 1


@lru_cache(maxsize=256)
def shows_few(enlisted: int, added: int, groups: int, smallest: int, fewest: int) -> str:
    """Why the uploads of ``added`` of so many clients must not be added up in groups, or "": some group would have
    fewer than ``fewest``, but not none, with probability above ``RISK`` if absences are by chance (hypergeometric,
    over all groups).
    """
    if not added:
        return "no upload is counted"
    if not _may_show(enlisted, added, groups, smallest, fewest):
        return ""
    enough = fewest_uploads(enlisted, added, groups, smallest, fewest)
    larger = range(smallest, enlisted // max(groups, 2) + 1)
    fit = bisect_left(larger, True, key=lambda size: not _may_show(enlisted, added, groups, size, fewest))
    ways = [f"{enough} uploads are enough"] if enough <= enlisted else []
    if groups > 1 and fit < len(larger):
        ways.append(f"these are with min_cluster={larger[fit]}, which finds no smaller groups")
    if groups > 1 and not _may_show(enlisted, added, 1, enlisted, fewest):
        ways.append("these are with clusters=1, one group for all")
    ways.append("any number is with fewest=1, by which a member may see the only other one's update, under some noise")
    return f"{added} uploads of {enlisted} clients: a group's sum might be of fewer than {fewest}. {'; '.join(ways)}"


def fewest_uploads(enlisted: int, added: int, groups: int, smallest: int, fewest: int) -> int:
    """``added`` at least; more than are enlisted if no number is enough."""
    more = range(added, enlisted + 1)
    return added + bisect_left(more, True, key=lambda n: not _may_show(enlisted, n, groups, smallest, fewest))


def _may_show(enlisted: int, added: int, groups: int, smallest: int, fewest: int) -> bool:
    size = min(smallest, enlisted) if groups > 1 else enlisted
    ways = sum(comb(size, k) * comb(enlisted - size, added - k) for k in range(1, min(fewest, size + 1)) if k <= added)
    return groups * ways > RISK * comb(enlisted, added)
