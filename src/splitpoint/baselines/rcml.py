"""Reliable conflictive multi-view learning: evidence of every view, averaged (RCML, Xu et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splitpoint.baselines.evidential_classification import dirichlet, uniform_divergence
from splitpoint.baselines.settings import ClassificationMethod
from splitpoint.baselines.trained import NetworkBaseline, NetworkPredictor
from splitpoint.batches import Data, first_batch
from splitpoint.consistency import entropy
from splitpoint.errors import SettingsError
from splitpoint.method import Given
from splitpoint.networks import Architecture, Factory, Prepared, build, factory_of
from splitpoint.networks.views import WHOLE, Views, check_views, find_views
from splitpoint.tasks import Answer, ClassAnswer

Order = Literal["mean", "sequential"]


def log_risk(alpha: Tensor, one_hot: Tensor) -> Tensor:
    """Expected log loss ``sum_k y_k (psi(S) - psi(alpha_k))`` under the Dirichlet; classes on axis 1."""
    return (one_hot * (torch.digamma(alpha.sum(1, keepdim=True)) - torch.digamma(alpha))).sum(1)


def fused(evidence: Tensor, order: Order) -> Tensor:
    """Evidence (V, N, K, ...) of all views as one, (N, K, ...).

    Args:
        evidence: of every view.
        order: "mean", or "sequential": one view after the other is averaged with what came before, as in the authors'
            code, so that the last of several views weighs 1/2 and the first two ``2^(1 - V)`` each.

    >>> fused(torch.tensor([[[4.0]], [[0.0]], [[1.0]]]), "sequential")
    tensor([[1.5000]])
    """
    if order == "mean":
        return evidence.mean(0)
    whole = evidence[0]
    for view in evidence[1:]:
        whole = (whole + view) / 2
    return whole


def conflictive_degrees(alpha: Tensor) -> Tensor:
    """How far the opinion of each view is from those of the others, on average: (V, N, ...) for alpha (V, N, K, ...).

    Of two views ``1/2 |p_v - p_w|_1 (1 - u_v) (1 - u_w)`` with ``p = alpha / S`` and ``u = K / S`` (Eq. 6 there); 0 for
    a single view.
    """
    strength = alpha.sum(2, keepdim=True)
    probs, sure = alpha / strength, 1 - alpha.shape[2] / strength.squeeze(2)
    pairs = (probs.unsqueeze(1) - probs.unsqueeze(0)).abs().sum(3) / 2 * sure.unsqueeze(1) * sure.unsqueeze(0)
    return pairs.sum(1) / max(len(alpha) - 1, 1)


@dataclass(frozen=True, kw_only=True)
class Rcml(NetworkBaseline, ClassificationMethod[NetworkPredictor]):
    """A Dirichlet for each view of a network, ``alpha = softplus(f_v) + 1``, and one of their mean evidence.

    Loss: the mean over the fused Dirichlet and those of the views of ``log risk + anneal KL`` of the evidence against
    wrong classes, and `gamma` times the sum over views of their conflictive degree. `anneal` rises from 0 to 1 over the
    first part of the training. Probabilities are the fused Dirichlet's mean, the epistemic score is its vacuity
    ``K / S``. The prediction's `blame` (N, V) are conflictive degrees and `conflict` (N,) is their mean; a network of
    one view has neither, and is plain evidential classification with a log risk.

    Attributes:
        views: names of the modules whose outputs are the logits f_v of a view; None for those that add up to the
            network's output or whose mean it is, and for the network itself where there are none. Whatever the network
            makes of them is not used.
        order: how evidence is fused, see `fused`.
        gamma: weight of the conflict between views.
        annealing: share of the training in which the divergence rises to its weight; the authors' 50 of 500 epochs.
    """

    views: tuple[str, ...] | None = None
    order: Order = "mean"
    gamma: float = 1.0
    annealing: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma < 0:
            raise SettingsError(f"Expected gamma >= 0, but got {self.gamma}.")
        if not 0 < self.annealing <= 1:
            raise SettingsError(f"Expected annealing in (0, 1], but got {self.annealing}.")
        names: Any = self.views
        if names is not None and (
            isinstance(names, str) or not names or len(set(names)) < len(names) or not all(map(_is_text, names))
        ):
            raise SettingsError(
                f"Expected views= as names of different modules, at least one, but got {names!r}; leave it out to look "
                "for them."
            )

    def _loss(self, raw: Tensor, target: Tensor, part: float) -> Tensor:
        """Loss of every target for the logits (R, V K, ...) of all views, one after the other."""
        evidence = F.softplus(self._apart(raw))
        one_hot = F.one_hot(target, evidence.shape[2]).movedim(-1, 1).to(raw.dtype)
        weight = min(1.0, part / self.annealing)
        opinions = torch.cat([fused(evidence, self.order).unsqueeze(0), evidence]) + 1
        losses = [
            log_risk(alpha, one_hot) + weight * uniform_divergence(one_hot + (1 - one_hot) * alpha)
            for alpha in opinions
        ]
        return torch.stack(losses).mean(0) + self.gamma * conflictive_degrees(opinions[1:]).sum(0)

    def _answer(self, predictor: NetworkPredictor, runs: Tensor, score: Tensor | None) -> Answer:  # noqa: ARG002
        views = self._apart(runs[0])
        alpha = fused(F.softplus(views), self.order) + 1
        strength = alpha.sum(1, keepdim=True)
        probs = alpha / strength
        degrees = conflictive_degrees(dirichlet(views)) if len(views) > 1 else None
        return ClassAnswer(
            probs,
            probs,
            epistemic=alpha.shape[1] / strength.squeeze(1),
            total=entropy(probs, 1),
            conflict=None if degrees is None else degrees.mean(0),
            blame=None if degrees is None else degrees.movedim(0, 1),
        )

    @property
    def _width(self) -> int:
        return len(self.views or WHOLE)

    def _changed(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """The network with the outputs of all views; one that is the only view is left as it is."""
        names = self.views or WHOLE
        return network if names == WHOLE else Views(network, names, architecture.layout.axis)

    def _parts(self, raw: Tensor, architecture: Architecture) -> Tensor:  # noqa: ARG002
        """Canonical outputs (R, V D, ...) as logits (R, V K, ...)."""
        return torch.cat([self._task.canonical(view) for view in self._apart(raw)], 1)

    def _apart(self, raw: Tensor) -> Tensor:
        """What all views give, (R, V K, ...), view by view: (V, R, K, ...)."""
        views: Tensor = raw.unflatten(1, (self._width, -1))
        return views.movedim(1, 0)

    def _fit_many(self, given: Given) -> list[NetworkPredictor]:
        return super(Rcml, self._looking(given.starts[0], given.data[0]))._fit_many(given)

    def prepared(self, pattern: nn.Module | Factory, data: Data) -> Prepared:
        """See `NetworkBaseline`."""
        return super(Rcml, self._looking(pattern, data)).prepared(pattern, data)

    def assemble(
        self, networks: Sequence[nn.Module], data: Data, *, pattern: nn.Module | Factory | None = None, **more: Any
    ) -> NetworkPredictor:
        """See `NetworkBaseline`; networks as `prepared` builds them need the plain one as their pattern."""
        if pattern is None and isinstance(networks[0], Views):
            raise SettingsError(
                "Expected a pattern= of networks with several views, the plain network or a function that builds it, "
                "but got none."
            )
        method = self._looking(networks[0] if pattern is None else pattern, data)
        return super(Rcml, method).assemble(networks, data, pattern=pattern, **more)

    def _looking(self, start: nn.Module | Factory, data: Data) -> Rcml:
        """The same settings with the views by name."""
        network = build(factory_of(start), 0)
        batch = first_batch(data, self.batch_size).to(network)
        if self.views is None:
            return replace(self, views=find_views(network, batch, self.output_key))
        check_views(network, self.views, batch, self.output_key)
        return self


def _is_text(name: Any) -> bool:
    return isinstance(name, str)
