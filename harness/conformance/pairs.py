"""Combinations in which every pair of levels of two factors occurs: few cases that try much.

A mistake that shows only if two settings meet, such as a model's part on an uneven grid, is in one of the combinations.
They are chosen greedily, as in AETG (Cohen et al., IEEE TSE 1997), among those that are accepted.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations, product
from typing import NamedTuple

Combination = tuple[int, ...]
"""The level of each factor; level 0 is the usual one."""
Pair = tuple[int, int, int, int]
"""Two factors, each followed by its level."""


class Covering(NamedTuple):
    """Combinations, and the pairs that occur in them."""

    combinations: list[Combination]
    pairs: int
    """The pairs that are accepted together if all other factors are at their usual level. All of them occur."""
    refused: int
    """The pairs that are not."""


def cover_pairs(levels: Sequence[int], accepts: Callable[[Combination], bool]) -> Covering:
    """Return combinations in which every accepted pair occurs, given the number of levels of each factor."""
    usual, accepts = (0,) * len(levels), cache(accepts)
    pairs = [
        (a, i, b, j)
        for a, b in combinations(range(len(levels)), 2)
        for i, j in product(range(levels[a]), range(levels[b]))
    ]
    accepted = [pair for pair in pairs if accepts(_put(_put(usual, *pair[:2]), *pair[2:]))]
    missing, chosen = dict.fromkeys(accepted), list[Combination]()
    longest_first = sorted(range(len(levels)), key=lambda factor: -levels[factor])
    while missing:
        a, i, b, j = next(iter(missing))
        combination, fixed = _put(_put(usual, a, i), b, j), {a, b}
        for factor in longest_first:
            if factor not in fixed:
                options = [_put(combination, factor, level) for level in range(levels[factor])]
                fixed.add(factor)
                combination = max(
                    filter(accepts, options), key=lambda option: _count_new(option, factor, fixed, missing)
                )
        for pair in _list_pairs(combination):
            missing.pop(pair, None)
        chosen.append(combination)
    return Covering(chosen, len(accepted), len(pairs) - len(accepted))


def _put(combination: Combination, factor: int, level: int) -> Combination:
    return (*combination[:factor], level, *combination[factor + 1 :])


def _list_pairs(combination: Combination) -> list[Pair]:
    return [(a, i, b, j) for (a, i), (b, j) in combinations(enumerate(combination), 2)]


def _count_new(combination: Combination, factor: int, fixed: set[int], missing: dict[Pair, None]) -> int:
    """Count the missing pairs that include a factor and any other fixed factor."""
    return sum(
        (
            min(factor, other),
            combination[min(factor, other)],
            max(factor, other),
            combination[max(factor, other)],
        )
        in missing
        for other in fixed - {factor}
    )
