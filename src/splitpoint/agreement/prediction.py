"""What `Agreement` says about rows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from splitpoint.prediction import Reference, Rowwise


@dataclass(frozen=True, eq=False)
class AgreementPrediction(Rowwise):
    """How far the modalities of N rows contradict each other; `flagged` and `percentile` are made of `conflict`.

    Attributes:
        conflict: (N,) how improbable it is that all M modalities speak of one class, see `opinions.conflict`.
        blame: (N, M) how far each modality contradicts all the others together, see `opinions.blame`.
        probs: (N, M, K) what each modality alone says of the classes.
        missing: (N, M) bool: modalities whose branch did not run. They say nothing and have no blame.
        modalities: names of the M modalities, in the order of every axis M.
        reference: in-distribution reference set by ``set_threshold``, or None.
    """

    conflict: Tensor
    blame: Tensor
    probs: Tensor
    missing: Tensor
    modalities: tuple[str, ...]
    reference: Reference | None = None

    @property
    def modality_probs(self) -> Tensor:
        """(M, N, K) what each modality alone says of the classes, uniform where it is missing."""
        return self.probs.movedim(1, 0)

    @property
    def blamed(self) -> Tensor:
        """(N,) number of the modality with the largest blame; two modalities that contradict each other share it."""
        return self.blame.argmax(1)

    def _scores(self) -> tuple[Tensor, Tensor | None]:
        return self.conflict, None
