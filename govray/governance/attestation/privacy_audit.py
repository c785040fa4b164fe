"""A privacy audit of one training run: a lower bound on ε, from guesses about planted canaries.

For each of m canaries a fair coin decides beforehand whether it is planted. After training, an
auditor guesses each coin from the model's loss: the k lowest losses as planted, the k highest as
left out. It abstains on the others. If training were (ε, δ)-differentially private in a canary,
few guesses could be right. So many right ones refute small ε.

Theorem (Steinke et al. 2023, Theorem 3.1; the constant before δ is that of Corollary 5.4, as in
Appendix D). Let r guesses be made about m coins, W of them right. Under (ε, δ), with
B ~ Binomial(r, e^ε / (1 + e^ε)),

    P(W ≥ v) ≤ P(B ≥ v) + 2mδ · max over i in 1 … v of P(v > B ≥ v − i) / i.

Invariants

* **How many guesses are made is fixed beforehand.** Here r is m, m/2, m/4 and m/8, each tested at
  a fourth of the error that the confidence leaves. So the largest bound holds at the confidence.
* **Only counts enter.** A reader of the document computes the bound again.
* No bound is below 0, and 0 says nothing.

A bound holds for canaries of this kind, read so often, and for this auditor. Another auditor may
find more, so it is no upper bound. It says nothing of code that reads the coin.

Source: Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training Run".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator

from govray.governance.formats.bounds import Natural, Positive
from govray.governance.formats.document import Document
from govray.governance.policy.memorization_section import Magnitude
from govray.governance.record.canary import CanaryCount

Confidence = Annotated[float, Field(ge=0.5, le=0.999999)]
Delta = Annotated[float, Field(ge=0, lt=1)]

_HALVINGS = 4
_ROUNDING = 1e-6  # of logarithms, from one machine to another


class PrivacyLevel(Document):
    """At what ``confidence`` (of 1) a bound on ε holds, and for which δ."""

    confidence: Confidence
    delta: Delta


class GuessedCoins(Document):
    """``guesses`` coins that were guessed, how many ``correct``, and the bound they give on ε."""

    guesses: Positive
    correct: Natural
    epsilon: Magnitude


class PrivacyAudit(Document):
    """What guesses about the canaries of one corpus show.

    Attributes:
        level: Of the bound.
        canaries: m, the coins thrown.
        tried: By number of guesses, most first; each at its part of the error.
        epsilon: The largest bound among them: training is not (ε', δ)-differentially private in
            one canary, with all its repeats, for any ε' below it. 0: nothing was shown.
    """

    level: PrivacyLevel
    canaries: CanaryCount
    included: Natural
    tried: Annotated[tuple[GuessedCoins, ...], Field(min_length=1)]
    epsilon: Magnitude

    @model_validator(mode="after")
    def _follows(self) -> Self:
        if self.included > self.canaries:
            raise ValueError("more canaries were planted than coins thrown")
        if [each.guesses for each in self.tried] != guess_counts(self.canaries):
            raise ValueError("the numbers of guesses are not those fixed beforehand")
        for each in self.tried:
            found = _tried(self.canaries, each.guesses, each.correct, self.level)
            if abs(found.epsilon - each.epsilon) > _ROUNDING:
                raise ValueError(f"{each.correct} of {each.guesses} give ε {found.epsilon:.6f}")
        if self.epsilon != max(each.epsilon for each in self.tried):
            raise ValueError("ε is not the largest bound")
        return self


def p_value(canaries: int, guesses: int, correct: int, *, epsilon: float, delta: float) -> float:
    """The theorem's bound on P(W ≥ ``correct``) under (ε, δ)-differential privacy, at most 1.

    Args:
        canaries: m, each planted by a fair coin of its own.
        guesses: r, those not abstained on.
        correct: v.
        epsilon: Nats, at least 0.
        delta: In [0, 1].
    """
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"{correct} of {guesses} guesses about {canaries} canaries")
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise ValueError(f"no privacy parameters: epsilon {epsilon}, delta {delta}")
    wrong = -epsilon - math.log1p(math.exp(-epsilon))  # log (1 − q)
    right = -math.log1p(math.exp(-epsilon))  # log q
    every = math.lgamma(guesses + 1)

    def mass(count: int) -> float:
        ways = every - math.lgamma(count + 1) - math.lgamma(guesses - count + 1)
        return math.exp(ways + count * right + (guesses - count) * wrong)

    tail = math.fsum(mass(count) for count in range(correct, guesses + 1))
    below = steepest = 0.0
    if delta:
        for i in range(1, correct + 1):
            below += mass(correct - i)
            steepest = max(steepest, below / i)
    return min(1.0, tail + 2 * canaries * delta * steepest)


def epsilon_bound(
    canaries: int, guesses: int, correct: int, *, delta: float, confidence: float
) -> float:
    """The largest ε that the guesses refute at a confidence, nats; 0 if they refute none.

    All r right, and δ = 0: with β = 1 − confidence it is log(β^(1/r) / (1 − β^(1/r))), or 0.

    Args:
        confidence: In (0, 1).
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")
    level = 1 - confidence

    def refuted(epsilon: float) -> bool:
        return p_value(canaries, guesses, correct, epsilon=epsilon, delta=delta) < level

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def guess_counts(canaries: int) -> list[int]:
    """How many coins are guessed: even numbers near m, m/2, m/4 and m/8, each at least 2."""
    halves = (canaries // 2**times for times in range(1, _HALVINGS + 1))
    return sorted({2 * half for half in halves if half}, reverse=True)


def privacy_audit(
    losses: Sequence[float], included: Sequence[bool], level: PrivacyLevel
) -> PrivacyAudit:
    """Guess each canary's coin by its loss, and bound ε.

    Args:
        losses: Of each canary, nats, by index: planted and left out together.
        included: How each coin fell; looked at only when guesses are counted.
    """
    if len(included) != len(losses) or len(losses) < 2:
        raise ValueError(f"{len(losses)} losses and {len(included)} coins make no audit")
    order = sorted(range(len(losses)), key=lambda index: losses[index])
    tried = []
    for guesses in guess_counts(len(order)):
        half = guesses // 2
        planted, left_out = order[:half], order[len(order) - half :]
        correct = sum(included[i] for i in planted) + sum(not included[i] for i in left_out)
        tried.append(_tried(len(order), guesses, correct, level))
    return PrivacyAudit(
        level=level,
        canaries=len(order),
        included=sum(included),
        tried=tuple(tried),
        epsilon=max(each.epsilon for each in tried),
    )


def _tried(canaries: int, guesses: int, correct: int, level: PrivacyLevel) -> GuessedCoins:
    error = (1 - level.confidence) / len(guess_counts(canaries))
    bound = epsilon_bound(canaries, guesses, correct, delta=level.delta, confidence=1 - error)
    return GuessedCoins(guesses=guesses, correct=correct, epsilon=bound)
