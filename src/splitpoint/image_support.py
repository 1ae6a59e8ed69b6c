"""How little the training set says about a whole image or sequence: Gaussian distances of what its layers read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from splitpoint.cache import Table, feature_moments
from splitpoint.calibration import surprise
from splitpoint.heads import projection

SHRINKAGE = 0.3
"""Weight of the identity in the covariance: there are often more features than images."""

FEWEST = 10
"""Fewest images whose distances have a mean and a deviation worth the name."""

PREFIX = "images."
"""Of the names of what is fitted, among the tensors of a predictor."""

BUFFERS = ("center", "spread", "whiten", "usual", "deviation")


class StageSupport(nn.Module):
    """Standardised log-distance of one stage.

    With x the standardised vector of an image, S its covariance over the n training images and
    ``C = 0.7 S + 0.3 I``, the distance is ``d = sqrt(x' C^-1 x)`` and the score ``z = (log d - usual) / deviation``.

    Args:
        tensors: ``center`` and ``spread`` (W,), ``whiten`` (W, V), and ``usual`` and ``deviation``, scalars.
    """

    center: Tensor
    spread: Tensor
    whiten: Tensor
    usual: Tensor
    deviation: Tensor

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name in BUFFERS:
            self.register_buffer(name, tensors[name])

    @staticmethod
    def fit(vectors: Tensor, held_out: Tensor | None) -> StageSupport:
        """Distances of training images (n, W), standardised by those (m, W) that are held out, if there are any.

        Else each training image is left out of the mean and the covariance that it is measured by. With
        ``f = n / (n - 1)`` the square of its distance is then ``f^2 q / (1 - 0.7 f q / n)``, where q is the square in
        sample (Sherman and Morrison).
        """
        center, spread = feature_moments(Table.in_memory({"features": vectors}))
        project = projection(len(center))
        x, n = ((vectors - center) / spread @ project).double(), len(vectors)
        covariance = (1 - SHRINKAGE) / n * x.T @ x + SHRINKAGE * torch.eye(x.shape[1], dtype=torch.float64)
        inverse = torch.linalg.inv(torch.linalg.cholesky(covariance)).T
        square, factor = (x @ inverse).square().sum(1), n / (n - 1)
        left_out = factor**2 * square / (1 - (1 - SHRINKAGE) * factor / n * square)
        own = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
        tensors = (center, spread, (project.double() @ inverse).float().contiguous(), *own)
        found = StageSupport(dict(zip(BUFFERS, tensors, strict=True)))
        known = left_out.log() / 2 if held_out is None else found(held_out)
        found.usual.copy_(known.mean())
        found.deviation.copy_(known.std().clamp(min=1e-6))
        return found

    def forward(self, vectors: Tensor) -> Tensor:
        """Vectors (N, W) -> z (N,), in float64."""
        squares = ((vectors - self.center) / self.spread @ self.whiten).double().square().sum(1)
        return (squares.clamp(min=1e-12).log() / 2 - self.usual) / self.deviation


class ImageSupport(nn.Module):
    """Sum over stages of the surprise at their distances, ``softplus(z)^2`` up to 9 and straight beyond.

    A stage is a layer of the network, described by what it reads, averaged over the thirds of the image (see
    `layout.bands`). Stages are measured apart, since none sees all: those near the input tell another scene, those in
    the depth of the network what was done to fool it.

    Args:
        stages: in the order of their vectors.
    """

    def __init__(self, stages: Sequence[StageSupport]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    @staticmethod
    def fit(images: Table, widths: Sequence[int], held_out: Table | None) -> ImageSupport | None:
        """From the vectors of training images, side by side; None for fewer than 10.

        Args:
            images: column ``features``, the vectors of all stages side by side.
            widths: of the stages.
            held_out: those of calibration images, which set the scales unless they are fewer than 10.
        """
        if images.rows < FEWEST:
            return None
        fresh = held_out if held_out is not None and held_out.rows >= FEWEST else None
        known = images.column("features").split(list(widths), 1)
        others = [None] * len(known) if fresh is None else fresh.column("features").split(list(widths), 1)
        return ImageSupport([StageSupport.fit(*pair) for pair in zip(known, others, strict=True)])

    @staticmethod
    def among(tensors: Mapping[str, Tensor]) -> ImageSupport | None:
        """That of a predictor's tensors; None where they have none."""
        prefix = f"{PREFIX}stages."
        own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        count = len({name.partition(".")[0] for name in own})
        stages = [StageSupport({name: own[f"{number}.{name}"] for name in BUFFERS}) for number in range(count)]
        return ImageSupport(stages).eval() if stages else None

    def forward(self, vectors: Sequence[Tensor]) -> Tensor:
        """A vector (N, W) for every stage -> lack of support (N,), at least 0, in float32."""
        pairs = zip(self.stages, vectors, strict=True)
        return torch.stack([surprise(stage(given)) for stage, given in pairs]).sum(0).float()
