"""(n, p)-discoverable extraction: how often one must sample until a text comes word for word.

Under a sampling scheme a model continues a prefix with a given text with probability q. Of n
independent samples at least one is that text with probability 1 − (1 − q)ⁿ. The text is
(n, p)-discoverable if that is at least p. Greedy decoding sees only whether the text is the most
likely one, token by token. Sampling also gives a text that comes once in a hundred times.

q is a product over the text's tokens, given the true ones before. So one forward pass gives it and
nothing is sampled (``sequence_loss.continuations``).

Source: Hayes et al. 2024, "Measuring memorization through probabilistic discoverable extraction"
(arXiv 2410.19482), section 3.
"""

from __future__ import annotations

import math

MOST = 10**15
"""A text that needs more samples than this counts as not discoverable."""


def chance(log_probability: float, samples: int) -> float:
    """1 − (1 − q)ⁿ: the probability that at least one of n samples is the text.

    Args:
        log_probability: log q, nats, at most 0; −∞ if the scheme never gives the text.
        samples: n, at least 1.
    """
    if log_probability > 0 or math.isnan(log_probability) or samples < 1:
        raise ValueError(f"log probability {log_probability}, {samples} samples")
    if log_probability == 0:
        return 1.0
    return -math.expm1(samples * math.log1p(-math.exp(log_probability)))


def least_samples(log_probability: float, p: float) -> int | None:
    """The least n for which a text is (n, p)-discoverable; None if it is above ``MOST``.

    Args:
        log_probability: log q, nats, at most 0; −∞ if the scheme never gives the text.
        p: In (0, 1).
    """
    if not 0 < p < 1:
        raise ValueError(f"a probability of {p} is not between 0 and 1")
    if chance(log_probability, 1) >= p:
        return 1
    missed = math.log1p(-math.exp(log_probability))  # log (1 − q), at most 0
    if missed == 0 or math.log1p(-p) / missed > MOST:
        return None
    found = math.ceil(math.log1p(-p) / missed)
    # The quotient is rounded: it may be one off, where a whole number is exact.
    if chance(log_probability, found) < p:
        return found + 1
    return found - 1 if chance(log_probability, found - 1) >= p else found
