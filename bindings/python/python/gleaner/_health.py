"""The health of gradients that are sent late."""

from __future__ import annotations

from typing import List, NamedTuple

from gleaner import _native


class Finding(NamedTuple):
    """What slows a training."""

    #: A word for it: `unbounded`, `doubling`, `stale` or `momentum`.
    name: str
    #: What it is, and what helps.
    sentence: str


class Health(NamedTuple):
    """What waits on this rank, and how long, over the last steps that were looked at."""

    #: In how many steps it was looked at, so far: in each seventeenth. Nothing is found before the fourth.
    looks: int
    #: How many steps a value waits until it is delivered: `waiting` over `delivered`, infinity if nothing is, and 0 where nothing waits.
    waits: float
    #: The sum of the magnitudes of what waits after a step.
    waiting: float
    #: The same of what a step delivers of this rank's values.
    delivered: float
    #: The share of the entries that a step is set to deliver.
    density: float
    #: What slows the training.
    findings: List[Finding]


def of(gradients: _native.Gradients, momentum: float) -> Health:
    """What is found with an optimiser of this momentum.

    Raises:
        MethodError: a momentum that is not from 0 to below 1.
    """
    looks, numbers, findings = gradients.health(momentum)
    return Health(looks, *numbers, [Finding(*finding) for finding in findings])
