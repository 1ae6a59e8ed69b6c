"""Where the training set says something about a classifier's input, and where it does not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from splitpoint.cache import Table, feature_moments
from splitpoint.calibration import surprise
from splitpoint.classification.probes import probes
from splitpoint.consistency import entropy
from splitpoint.heads import FARTHEST, projection
from splitpoint.metrics import auroc
from splitpoint.operators import nearest
from splitpoint.tasks import Rows

LEAST_SHRINKAGE = 0.02
LEAST_REST = 0.05
"""Share of the covariance in one direction that is left once a row is left out, at least: few rows leave none."""

TRUST, TRUST_ROWS = 0.25, 30
USUAL_SPREAD, SPREAD_ROWS = 0.2, 10
CLIPPED = 0.99
GUARD = 0.1
"""Share of its weight that the distance of several branches keeps where another score takes over."""

AHEAD, FEWEST, COMPARED = 0.05, 50, 2000
"""AUROC by which a free score has to be ahead to take over, and fewest and most rows that it is measured with."""
BUFFERS = ("center", "spread", "whiten", "centres", "prior", "usual", "deviation", "weights", "offset", "rivalry")


class Support(nn.Module):
    """How little the training set says about an input, from its features and logits; see `forward`.

    Three pieces of evidence, larger for less support: the tied Mahalanobis distance of the features to the nearest
    class centre, the energy, minus the logsumexp of the centred logits, and the doubt ``-log max p``, which counts for
    little unless rows are few, or it tells probes better than the others (see `_compete`). Each is standardised by its
    mean and deviation over rows that it was not fitted to: calibration rows where there are any, else training rows,
    each left out of what its distance is measured by, or of the network itself (see `stand_ins`). All of it is closed
    form.

    Args:
        tensors: the buffers by name, see `fit`.
        steepness: of the share, see `share`.
        fused: whether the features are those of several branches. The entropy of the softmax is then the doubt:
            branches that disagree leave several classes, of which the largest share alone says little.
    """

    center: Tensor
    spread: Tensor
    whiten: Tensor
    centres: Tensor
    prior: Tensor
    usual: Tensor
    deviation: Tensor
    weights: Tensor
    offset: Tensor
    rivalry: Tensor

    def __init__(self, tensors: Mapping[str, Tensor], steepness: float, fused: bool = False) -> None:
        super().__init__()
        self.steepness, self.fused = steepness, fused
        for name in BUFFERS:
            self.register_buffer(name, tensors[name])

    @staticmethod
    def fit(
        table: Table,
        classes: int,
        steepness: float,
        mass: float,
        held_out: Table | None = None,
        evidence: Tensor | None = None,
        parts: Sequence[int] = (),
    ) -> Support:
        """Class centres and tied covariance of the features, then the scales of the evidence and its weights.

        Args:
            table: training rows with ``features``, ``logits`` and ``label``.
            classes: their number K.
            steepness: of the share.
            mass: mean of the share over the rows that set the scales.
            held_out: calibration rows that set the scales; None for the training rows, each left out.
            evidence: (n, 2) distances and energies that set the scales in place of either, see `evidence`.
            parts: numbers of features of branches, see `heads.projection`.
        """
        center, spread = feature_moments(table)
        project = projection(len(center), parts)
        scatter = Scatter.of(table, center, spread, project, classes)
        covariance, shrinkage = scatter.covariance(table)
        factor = torch.linalg.cholesky(covariance)
        inverse = torch.linalg.inv(factor).T
        tensors = {
            "center": center,
            "spread": spread,
            "whiten": (project.double() @ inverse).float(),
            "centres": (scatter.centres @ inverse).float(),
            "prior": (scatter.counts + 1) / (scatter.counts.sum() + classes),
            "usual": torch.zeros(3, dtype=torch.float64),
            "deviation": torch.ones(3, dtype=torch.float64),
            "weights": _trusted(table.rows),
            "offset": torch.zeros((), dtype=torch.float64),
            "rivalry": torch.full((3,), torch.nan, dtype=torch.float64),
        }
        support = Support(tensors, steepness, len(parts) > 1)
        if held_out is not None:
            evidence = support.evidence(held_out)
        elif evidence is None:
            rows = table.rows / (1 - float(shrinkage)) if shrinkage < 1 else float("inf")
            pairs = ((support._left_out(part, scatter, rows), part["logits"]) for part in table.slices())
            evidence = torch.cat([support._evidence(*pair) for pair in pairs])
        support._scale(evidence)
        support._compete(evidence, next(table.slices()), parts)
        support.offset.copy_(_offset(steepness * support.weighed(evidence), mass))
        return support

    def evidence(self, table: Table) -> Tensor:
        """Distance, energy and doubt (n, 3) of rows with ``features`` and ``logits``, in float64."""
        return torch.cat([self._evidence(self.distance(part["features"]), part["logits"]) for part in table.slices()])

    def _evidence(self, distances: Tensor, logits: Tensor) -> Tensor:
        return torch.stack([distances.double(), energy(logits), self._doubt(logits)], 1)

    def _doubt(self, logits: Tensor) -> Tensor:
        return entropy(logits.double().softmax(1), 1) if self.fused else doubt(logits)

    def weighed(self, evidence: Tensor) -> Tensor:
        """Lack of support (n,) of rows with this evidence (n, 3); see `forward`."""
        return self._weighed(*evidence.unbind(1))

    def _scale(self, evidence: Tensor) -> None:
        """Standardise by the evidence (n, 3) of rows that nothing was fitted to.

        Few rows leave the deviation of the distance near a fifth of its mean, and a distance counts as no larger than
        99% of them: a row that alone moves a feature lies hundreds of times as far as the rest once it is left out.
        """
        rows, distances = len(evidence), evidence[:, 0].sort().values
        clipped = evidence.clone()
        clipped[:, 0] = clipped[:, 0].clamp(max=float(distances[math.ceil(CLIPPED * (rows - 1))]))
        self.usual.copy_(clipped.mean(0))
        self.deviation.copy_(clipped.std(0, correction=0))
        expected = SPREAD_ROWS * (USUAL_SPREAD * self.usual[0]).square()
        self.deviation[0] = ((rows * self.deviation[0].square() + expected) / (rows + SPREAD_ROWS)).sqrt()
        self.deviation.clamp_(min=1e-9)

    def _compete(self, evidence: Tensor, rows: Rows, parts: Sequence[int]) -> None:
        """Give way to energy or doubt alone where they tell probes from ordinary rows clearly better.

        `rivalry` (3,) becomes the mean AUROC, over the kinds of probes, of support, energy and doubt. The distance of
        several branches keeps a little weight: one of them can lie anywhere while the others are sure of the class.
        """
        if len(rows["label"]) < FEWEST:  # of which probes are hardly other rows
            return
        inside = evidence[torch.linspace(0, len(evidence) - 1, min(len(evidence), COMPARED)).long()]
        found = []
        for features, logits in probes(rows, parts):
            outside = self._evidence(self.distance(features), logits)
            scores = [(self.weighed(part), part[:, 1], part[:, 2]) for part in (inside, outside)]
            found.append(torch.tensor([auroc(*pair) for pair in zip(*scores, strict=True)], dtype=torch.float64))
        self.rivalry.copy_(torch.stack(found).mean(0))
        if self.rivalry[1:].max() - self.rivalry[0] > AHEAD:
            kept = GUARD * float(self.weights[0]) if self.fused else 0.0
            self.weights.zero_()[1 + int(self.rivalry[1:].argmax())] = 1
            self.weights[0] = kept

    def _left_out(self, part: Rows, scatter: Scatter, rows: float) -> Tensor:
        """(R,) distances of training rows to the nearest centre, had each been left out of centres and covariance.

        With d the whitened difference to the row's own centre, h its weight in that centre, ``f = 1 / (1 - h)``, n
        the rows over one minus the shrinkage and e the difference to a centre, the squares are
        ``|e|^2 + f (e . d)^2 / (n - f |d|^2)`` (Sherman and Morrison), and ``f^2 |d|^2 / (1 - f |d|^2 / n)`` for its
        own.
        """
        x = (((part["features"] - self.center) / self.spread) @ self.whiten).double()
        centres = self.centres.double()
        own = scatter.place[part["label"][:, 0]]
        factor = scatter.left_out[own]
        d = x - centres[own]
        squared = d.square().sum(1)
        rest = (1 - factor * squared / rows).clamp(min=LEAST_REST)
        inner = (x * d).sum(1, keepdim=True) - d @ centres.T
        found = torch.cdist(x, centres).square() + (factor / rest / rows)[:, None] * inner.square()
        found[torch.arange(len(x)), own] = factor.square() * squared / rest
        return found.amin(1).sqrt()

    def distance(self, features: Tensor) -> Tensor:
        """(R, C) features -> (R,) Mahalanobis distance to the nearest class centre."""
        x = ((features - self.center) / self.spread).clamp(-FARTHEST, FARTHEST) @ self.whiten
        return nearest(x, self.centres).clamp(max=FARTHEST)

    def forward(self, distance: Tensor, logits: Tensor) -> Tensor:
        """Distance (R, ...) and logits (R, K, ...) -> lack of support (R, ...), at least 0, in float64.

        With ``u(z) = softplus(z)^2``, about twice the surprise in nats at a standard normal z, and a straight line
        beyond 3 (see `surprise`):

            ``support = u(z_energy) + (t u(max(z_distance, -1 - z_distance)) + (1 - t) u(z_doubt)) / 4``

        so that no piece of evidence can argue another away. The distance counts on both sides, since the features of
        an empty input collapse towards the mean, nearer than any training row. ``t = n / (n + 30)`` for n training
        rows: energy and doubt need no estimate of a covariance, and where there is hardly one, the doubt stands in for
        the distance, since the energy alone can fall for inputs that no row is like.
        """
        return self._weighed(distance.double(), energy(logits), self._doubt(logits))

    def _weighed(self, distance: Tensor, energies: Tensor, doubts: Tensor) -> Tensor:
        """The weighed sum of what the pieces of evidence say; see `forward`."""
        far, tired, torn = (
            (own - usual) / deviation
            for own, usual, deviation in zip((distance, energies, doubts), self.usual, self.deviation, strict=True)
        )
        pieces = zip(self.weights, (far.maximum(-1 - far), tired, torn), strict=True)
        return torch.stack([weight * surprise(z) for weight, z in pieces]).sum(0)

    def share(self, support: Tensor) -> Tensor:
        """Share in (0, 1) with which the training set has nothing to say: ``sigmoid(steepness * support + offset)``.

        The offset makes its mean equal to `mass` over the rows that set the scales.
        """
        return torch.sigmoid(self.steepness * support + self.offset)


def energy(logits: Tensor) -> Tensor:
    """Minus the logsumexp of the centred logits (R, K, ...), in float64 (Liu et al. 2020)."""
    wide = logits.double()
    return -(wide - wide.mean(1, keepdim=True)).logsumexp(1)


def doubt(logits: Tensor) -> Tensor:
    """``-log max p`` of logits (R, K, ...), in float64 (Hendrycks and Gimpel 2017, as a logarithm)."""
    wide = logits.double()
    return wide.logsumexp(1) - wide.amax(1)


def _trusted(rows: int) -> Tensor:
    """Weights (3,) of distance, energy and doubt after so many training rows; see `Support.forward`."""
    trust = rows / (rows + TRUST_ROWS)
    return torch.tensor([TRUST * trust, 1, TRUST * (1 - trust)], dtype=torch.float64)


@dataclass(frozen=True)
class Scatter:
    """Sums over standardised, projected training rows x, and class centres shrunk towards the mean of all rows.

    With W the variance within classes and B that between them, the centre of a class of n rows is
    ``g + n / (n + W / B) (mean - g)`` (James and Stein), and g itself where n = 1: a centre that is its only row says
    nothing about the spread around it.

    Attributes:
        rows: their number n.
        counts: (K,) rows of every class.
        place: (K,) index of a class among those that have rows.
        centres: (S, W) centres of these.
        left_out: (S,) ``1 / (1 - h)``, with h the weight of a row in the centre of its class.
        standard: center, spread and projection of the features.
        within: (W, W) mean square of the differences to the centres.
    """

    rows: int
    counts: Tensor
    place: Tensor
    centres: Tensor
    left_out: Tensor
    standard: tuple[Tensor, Tensor, Tensor]
    within: Tensor

    @staticmethod
    def of(table: Table, center: Tensor, spread: Tensor, project: Tensor, classes: int) -> Scatter:
        """One pass over the rows."""
        width, n = project.shape[1], table.rows
        counts = torch.zeros(classes, dtype=torch.float64)
        sums, gram = (torch.zeros(size, width, dtype=torch.float64) for size in (classes, width))
        for part in table.slices():
            x = _standardised(part, center, spread, project)
            label = part["label"][:, 0]
            counts += torch.bincount(label, minlength=classes)
            sums.index_add_(0, label, x)
            gram += x.T @ x
        seen = counts > 0
        own, means, overall = counts[seen], sums[seen] / counts[seen, None], sums.sum(0) / n
        weight = _weights(own, gram.trace(), (own * means.square().sum(1)).sum(), n * overall.square().sum())
        centres = overall + weight[:, None] * (means - overall)
        crossed = (own[:, None] * means).T @ centres
        within = (gram - crossed - crossed.T + (own[:, None] * centres).T @ centres) / n
        held = (weight / own + (1 - weight) / n).clamp(max=1 - 1e-6)
        place = (seen.cumsum(0) - 1).clamp(min=0)
        return Scatter(n, counts, place, centres, 1 / (1 - held), (center, spread, project), within)

    def covariance(self, table: Table) -> tuple[Tensor, Tensor]:
        """Covariance (W, W) within classes, shrunk towards a multiple of the identity (Ledoit and Wolf 2004).

        Also the shrinkage: the ratio of the sampling error of the covariance to its distance from the target, at least
        0.02. A second pass over the rows finds the former.
        """
        fourth = sum(float(self._differences(part).square().sum(1).square().sum()) for part in table.slices())
        width, target = len(self.within), self.within.diagonal().mean().clamp(min=1e-8)
        size = self.within.square().sum()
        error = (fourth / self.rows - size) / self.rows
        shrinkage = (error / (size - width * target.square()).clamp(min=1e-12)).clamp(LEAST_SHRINKAGE, 1)
        eye = torch.eye(width, dtype=torch.float64)
        return (1 - shrinkage) * self.within + shrinkage * target * eye, shrinkage

    def _differences(self, part: Rows) -> Tensor:
        return _standardised(part, *self.standard) - self.centres[self.place[part["label"][:, 0]]]


def _standardised(part: Rows, center: Tensor, spread: Tensor, project: Tensor) -> Tensor:
    return (((part["features"] - center) / spread) @ project).double()


def _weights(counts: Tensor, squares: Tensor, of_means: Tensor, of_overall: Tensor) -> Tensor:
    """Weight (S,) of a class's own mean in its centre, from sums of squares of rows, class means and overall mean."""
    free = (counts - 1).sum()
    if free <= 0:
        return torch.zeros_like(counts)
    within = (squares - of_means) / free
    between = ((squares - of_overall) / max(float(counts.sum()) - 1, 1) - within).clamp(min=1e-9)
    return torch.where(counts > 1, counts / (counts + within / between), 0.0)


def _offset(values: Tensor, mass: float) -> Tensor:
    """The offset at which the mean of ``sigmoid(values + offset)`` is `mass`, by bisection."""
    low, high = -values.max() - 40, -values.min() + 40
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if torch.sigmoid(values + middle).mean() > mass else (middle, high)
    return (low + high) / 2
