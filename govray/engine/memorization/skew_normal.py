"""The skew-normal distribution: fitted to samples, and how much of it lies below a value.

Density (2/ω) φ(z) Φ(αz) with z = (x − ξ)/ω. ``fit`` maximises the likelihood from the moments'
estimate. ``log_cdf`` integrates the density's logarithm. So it holds far in the tail, where the
closed form Φ(z) − 2T(z, α) cancels.

``goodness`` is the Kolmogorov–Smirnov distance with its asymptotic p-value. The parameters were
fitted to the same samples, so the p-value is too large. A small one shows that the fit is bad, a
large one shows little. Neither says anything about the tail beyond the samples.

Source: Azzalini 1985, "A class of distributions which includes the normal ones".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from govray.errors import UsageError

LEAST = 100
"""Samples below which nothing is fitted."""

_SPAN = 40.0  # of ω: beyond it below x, or below the samples, nothing counts in float64
_POINTS = 4001
_CHUNK = 256
_MOST_SKEWED = 0.99  # of the largest skewness that the family has


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
