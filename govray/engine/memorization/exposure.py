"""Exposure: how far a model prefers a planted secret to all others that could stand there.

exposure = log2 |R| − log2 rank, in bits. R is the space of candidates, and the rank is by the
model's loss on each. That is 0 bits if every candidate is preferred, log2 |R| if none is. It is

* **exact** where every candidate was scored;
* **extrapolated** if R is too large. A skew-normal distribution is fitted to the losses of sampled
  candidates. The exposure is −log2 of its mass at or below the secret's loss. The fit's distance
  from the samples is given, too. So is ``sampled_bits``, which needs no fit: −log2 of (as good as
  the secret + 1) / (n + 1). With n samples it is at most log2(n + 1) bits.

Invariants:

* A candidate that the model finds as likely as the secret counts as preferred. A model that tells
  nothing apart has exposure 0, not log2 |R|.
* No exposure is above log2 |R|: no rank is better than 1.

A low exposure says nothing about other text: not about the secret in other words, nor after another
prefix.

Source: Carlini et al. 2019, "The Secret Sharer", sections 4.2 to 4.4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from govray.engine.memorization.scores import untouched
from govray.engine.memorization.sequence_loss import Tokens, target_losses
from govray.engine.model.past import Past, takes_past
from govray.errors import UsageError


@dataclass(frozen=True)
class Exposure:
    """Of one secret.

    Attributes:
        bits: The exposure, in [0, log2 candidates].
        candidates: |R|, the secret included.
        scored: Candidates whose loss was measured, the secret not included in a sample.
        loss: The secret's, in nats.
        rank: 1 … candidates, where every one was scored; else None.
        fit: Distance of the extrapolating fit from the samples; None where exact.
        sampled_bits: What the samples alone say; None where exact.
    """

    bits: float
    candidates: int
    scored: int
    loss: float
    rank: int | None = None
    fit: Goodness | None = None
    sampled_bits: float | None = None


def rank(losses: Tensor, secret: float) -> int:
    """1 + the number of *other* candidates with a loss at or below the secret's."""
    return int((losses <= secret).sum()) + 1


def bits(rank: int, candidates: int) -> float:
    """log2 candidates − log2 rank."""
    if not 1 <= rank <= candidates:
        raise ValueError(f"rank {rank} is not one of {candidates}")
    return math.log2(candidates) - math.log2(rank)


def exact(others: Tensor, secret: float) -> Exposure:
    """The exposure from the losses of all candidates.
    ``others``: losses of every candidate but the secret."""
    found, candidates = rank(others, secret), others.numel() + 1
    return Exposure(bits(found, candidates), candidates, candidates, secret, rank=found)


def extrapolated(samples: Tensor, secret: float, candidates: int) -> Exposure:
    """The exposure from the losses of sampled candidates. ``samples``: losses of candidates drawn
    from R without the secret, at least ``LEAST``."""
    fitted = fit(samples)
    [mass] = fitted.log_cdf(torch.tensor([secret], dtype=torch.float64)).tolist()
    most = math.log2(candidates)
    n = samples.numel()
    return Exposure(
        bits=min(most, -mass / math.log(2)),
        candidates=candidates,
        scored=n,
        loss=secret,
        fit=goodness(fitted, samples),
        sampled_bits=min(most, math.log2(n + 1) - math.log2(rank(samples, secret))),
    )


def measure(
    model: nn.Module,
    secret: Tokens,
    others: Sequence[Tokens],
    candidates: int,
    *,
    batch: int = 64,
) -> Exposure:
    """Score a secret and other candidates where it stands; exact if they are all there are.

    Args:
        model: Maps token ids (rows, tokens) to logits (rows, tokens, ids), causally.
        secret: The token ids of what was planted, from its beginning to the secret's end.
        others: The same with other secrets: all ``candidates - 1`` of them, or a sample.
            What all sequences begin with is given to the model, once, and not scored.
        candidates: |R|.
        batch: Sequences in one forward.

    Raises:
        UsageError: As `extrapolated`, or a loss is not finite.
        ValueError: The sequences have no first token in common.
    """
    sequences = [secret, *others]
    start = _common(sequences)
    ends = [each[start:] for each in sequences]
    losses = end_losses(model, secret[:start], ends, batch=batch)
    own, *rest = (float(each.sum()) for each in losses)
    measured = torch.tensor(rest, dtype=torch.float64)
    if not (math.isfinite(own) and measured.isfinite().all()):
        raise UsageError(
            "the loss of a candidate is not finite",
            where="exposure",
            do="See whether the model's weights are",
        )
    if len(others) == candidates - 1:
        return exact(measured, own)
    return extrapolated(measured, own, candidates)


def _common(sequences: Sequence[Tokens]) -> int:
    """How many tokens all sequences begin with; each keeps at least its last."""
    count = 0
    for column in zip(*sequences, strict=False):
        if any(token != column[0] for token in column):
            break
        count += 1
    if not count:
        raise ValueError("the candidates have no first token in common")
    return min(count, *(len(each) - 1 for each in sequences))


_ROUNDING = 1e-3
"""Of a sequence's loss, relative to 1 nat or to itself: between a past and none."""


def end_losses(
    model: nn.Module, prefix: Tokens, ends: Sequence[Tokens], *, batch: int = 64
) -> list[Tensor]:
    """Loss of each token of each end, given the prefix and the end's tokens before it.

    A model that keeps a `Past` reads the prefix once. That past is not trusted: one sequence is
    read whole as well. Where its loss is not the same up to rounding, all are read whole.

    Args:
        model: Maps token ids (rows, tokens) to logits (rows, tokens, ids), causally.
        prefix: At least one token.
        ends: At least one token each.
        batch: Sequences in one forward; of ends, more in proportion as they are shorter.

    Returns:
        For each end losses in nats, float64 on the CPU, of shape (tokens,).
    """
    if not prefix or not all(ends):
        raise ValueError("a prefix and its ends need at least one token each")
    longest = max(range(len(ends)), key=lambda index: len(ends[index]), default=None)
    if longest is not None and takes_past(model) and not _apart(model, [prefix, *ends]):
        try:
            found = _after_past(model, prefix, ends, batch)
        except UsageError:  # the architecture keeps none, or the sequences are too long for it
            found = None
        if found is not None:
            [whole] = target_losses(model, [[*prefix, *ends[longest]]], [len(prefix)])
            if torch.allclose(found[longest], whole, rtol=_ROUNDING, atol=_ROUNDING):
                return found
    sequences = [[*prefix, *end] for end in ends]
    return target_losses(model, sequences, [len(prefix)] * len(ends), batch=batch)


def _apart(model: nn.Module, sequences: Sequence[Tokens]) -> bool:
    """Whether records of a row are kept apart, and a sequence has more than one."""
    separator = getattr(model, "separator", None)
    return separator is not None and any(separator in each for each in sequences)


def _after_past(
    model: nn.Module, prefix: Tokens, ends: Sequence[Tokens], batch: int
) -> list[Tensor]:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    past, found = Past(), []
    # As many tokens in a forward as whole sequences would have.
    batch *= 1 + len(prefix) // max(map(len, ends))
    with untouched(model), torch.no_grad():
        first = model(torch.tensor([list(prefix)], device=device), past=past)[:, -1:]
        for start in range(0, len(ends), batch):
            some = ends[start : start + batch]
            width = max(map(len, some))
            filled = [[*end, *[0] * (width - len(end))] for end in some]
            tokens = torch.tensor(filled, dtype=torch.long, device=device)
            logits = first.expand(len(some), -1, -1)
            if width > 1:
                # Ends that differ in their last token alone are one input.
                inputs, place = tokens[:, :-1].unique(dim=0, return_inverse=True)
                logits = torch.cat([logits, model(inputs, past=past)[place]], dim=1)
            losses = F.cross_entropy(
                logits.double().flatten(0, 1), tokens.flatten(), reduction="none"
            ).view(tokens.shape)
            found += [row[: len(end)] for row, end in zip(losses.cpu(), some, strict=True)]
    return found


LEAST = 100
"""Samples below which nothing is fitted."""

_SPAN = 40.0  # of ω: beyond it below x, or below the samples, nothing counts in float64
_POINTS = 4001
_CHUNK = 256
_MOST_SKEWED = 0.99  # of the largest skewness that the family has


# The skew-normal distribution, density (2/ω) φ(z) Φ(αz) with z = (x − ξ)/ω. ``fit`` maximises the
# likelihood from the moments' estimate. ``log_cdf`` integrates the density's logarithm. So it holds
# far in the tail, where the closed form Φ(z) − 2T(z, α) cancels. ``goodness`` is the
# Kolmogorov–Smirnov distance with its asymptotic p-value. The parameters were fitted to the same
# samples, so the p-value is too large. A small one shows that the fit is bad, a large one little.
#
# Source: Azzalini 1985, "A class of distributions which includes the normal ones".


@dataclass(frozen=True)
class SkewNormal:
    """``location`` ξ, ``scale`` ω > 0 and ``shape`` α (0: a normal distribution).
    Methods take tensors of any floating dtype, on the CPU."""

    location: float
    scale: float
    shape: float

    def log_pdf(self, x: Tensor) -> Tensor:
        """Natural logarithm of the density at each ``x`` (any shape), in float64."""
        return _log_pdf(x, self.location, self.scale, self.shape)

    def log_cdf(self, x: Tensor) -> Tensor:
        """Natural logarithm of the mass at or below each ``x`` (1-D), in float64."""
        # Dense near x: in the tail, nearly all mass below x lies just below it.
        below = _SPAN * self.scale * torch.linspace(0, 1, _POINTS, dtype=torch.float64) ** 3
        widths = torch.zeros_like(below)
        widths[:-1] += below.diff() / 2
        widths[1:] += below.diff() / 2
        pieces = [
            torch.logsumexp(self.log_pdf(each[:, None] - below) + widths.log(), dim=1)
            for each in x.double().split(_CHUNK)
        ]
        return torch.cat(pieces).clamp(max=0.0)


@dataclass(frozen=True)
class Goodness:
    """Kolmogorov–Smirnov ``distance`` between samples and fit, and its ``p_value``."""

    distance: float
    p_value: float


def fit(samples: Tensor) -> SkewNormal:
    """The most likely skew-normal distribution; the same for the same samples. ``samples``: at
    least ``LEAST``, finite and not all equal; any shape, floating dtype and device."""
    x = samples.detach().double().flatten().cpu()
    if x.numel() < LEAST:
        raise UsageError(
            f"{x.numel()} samples are too few to fit a distribution to",
            where="candidates",
            do=f"Sample at least {LEAST}",
        )
    spread = float(x.std())
    if not torch.isfinite(x).all() or spread <= 1e-12 * max(1.0, float(x.abs().max())):
        raise UsageError(
            "the losses of the sampled candidates are all equal or not finite",
            where="candidates",
            do="The model does not tell candidates apart: nothing can be fitted",
        )
    centre = float(x.mean())
    unit = (x - centre) / spread
    delta = _delta(float((unit**3).mean()))
    scale = 1 / math.sqrt(1 - 2 * delta**2 / math.pi)
    first = [
        -scale * delta * math.sqrt(2 / math.pi),
        math.log(scale),
        delta / math.sqrt(1 - delta**2),
    ]
    parameters = torch.tensor(first, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([parameters], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        location, log_scale, shape = parameters
        with torch.enable_grad():
            value = -_log_pdf(unit, location, log_scale.exp(), shape).mean()
            value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    location, log_scale, shape = parameters.detach().tolist()
    if not all(map(math.isfinite, (location, log_scale, shape))):
        location, log_scale, shape = first
    return SkewNormal(centre + spread * location, spread * math.exp(log_scale), shape)


def goodness(distribution: SkewNormal, samples: Tensor) -> Goodness:
    """How far the samples' distribution function is from the fitted one, at most.
    ``samples``: any shape, floating dtype and device."""
    x = samples.detach().double().flatten().cpu().sort().values
    n = x.numel()
    expected = distribution.log_cdf(x).exp()
    steps = torch.arange(n + 1, dtype=torch.float64) / n
    above, below = (steps[1:] - expected).max(), (expected - steps[:-1]).max()
    distance = float(torch.maximum(above, below))
    scaled = (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n)) * distance
    terms = (2 * (-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 101))
    # The series is 1 to rounding here, and converges too slowly to say so.
    p = 1.0 if scaled < 0.2 else sum(terms)
    return Goodness(distance, min(1.0, max(0.0, p)))


def _log_pdf(
    x: Tensor, location: float | Tensor, scale: float | Tensor, shape: float | Tensor
) -> Tensor:
    z = (x.double() - location) / scale
    log_scale = scale.log() if isinstance(scale, Tensor) else math.log(scale)
    constant = math.log(2) - math.log(2 * math.pi) / 2
    return constant - log_scale - z**2 / 2 + torch.special.log_ndtr(shape * z)


def _delta(skewness: float) -> float:
    """δ = α/√(1+α²) of the member with this skewness, or with the largest that there is."""
    largest = (4 - math.pi) / 2 * (2 / math.pi) ** 1.5 / (1 - 2 / math.pi) ** 1.5
    g = min(abs(skewness), _MOST_SKEWED * largest) ** (2 / 3)
    delta = math.sqrt(math.pi / 2 * g / (g + ((4 - math.pi) / 2) ** (2 / 3)))
    return math.copysign(delta, skewness)
