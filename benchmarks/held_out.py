"""The held-out results of papers, drawn by a seed. No constant of a machine card may be fitted to them.

The draw is recorded in benchmarks/results/held-out.md, and workflows/claims marks the same results.
"""

from collections import defaultdict
from math import floor
from random import Random

from benchmarks.registry import Results, Table, benchmark
from harness.claims.claims import Claim, read_claims
from harness.claims.evidence import Evidence
from harness.claims.verdicts import find_fitted_card
from harness.spec.root import find_root

Stratum = tuple[str, str]
"""A paper and a kind of its results: absolute numbers or ratios."""


@benchmark
def draw(number: int = 60, seed: int = 20261127) -> Results:
    """Draw results that only a prediction can reach and that no constant was fitted to.

    Args:
        number: results to draw
        seed: the seed of the draw
    """
    root = find_root()
    evidence = Evidence(root)
    strata = defaultdict[Stratum, list[str]](list)
    for paper, claims in read_claims(root).items():
        for claim in claims:
            if is_eligible(claim, evidence):
                strata[paper, claim.kind].append(claim.id)
    chosen = draw_from_strata(strata, number, seed)
    yield Table("paper", "kind", "eligible", "drawn", "ids")
    for (paper, kind), ids in sorted(strata.items()):
        drawn = [each for each in ids if each in chosen]
        yield paper, kind, len(ids), len(drawn), " ".join(drawn)


def is_eligible(claim: Claim, evidence: Evidence) -> bool:
    """Return whether a result depends on the constants of a machine card, none of which was fitted to it."""
    return claim.is_counted and claim.basis == "prediction" and not find_fitted_card(claim, evidence)


def draw_from_strata(strata: dict[Stratum, list[str]], number: int, seed: int) -> set[str]:
    """Draw from each stratum in proportion to its size. What rounding leaves goes to the largest remainders."""
    total = sum(map(len, strata.values()))
    if number > total:
        raise ValueError(f"{number} results cannot be drawn from {total}")
    exact = {stratum: number * len(ids) / total for stratum, ids in strata.items()}
    quotas = {stratum: floor(share) for stratum, share in exact.items()}
    by_remainder = sorted(exact, key=lambda stratum: (quotas[stratum] - exact[stratum], stratum))
    for stratum in by_remainder[: number - sum(quotas.values())]:
        quotas[stratum] += 1
    random = Random(seed)
    return {
        each for stratum in sorted(strata) for each in random.sample(sorted(strata[stratum]), quotas[stratum])
    }
