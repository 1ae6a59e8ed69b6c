"""What a fitted regressor says of vectors, worked out ahead: heads in few products, half-widths and MARs in another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint.consistency import Mars
from splitpoint.folded import Derived, Found, Standardised, answer, folded, narrow_product, sources_of
from splitpoint.heads import Heads
from splitpoint.operators import running_max
from splitpoint.regression.objective import Outputs
from splitpoint.regression.support import JointLeverage


class FoldedRegression(Derived):
    """Heads of a regressor, and their half-widths and MARs as linear functions of the softplus of their outputs.

    Half-widths ``c0 quantile + c1 MAR of the side + c2`` of a level, whose quantile is a sum of steps, and MARs, all
    times the scale of the residuals, are one product for every output, with a matrix (2 L + 3, 2 L + 3). A side without
    coefficients has those of the other, see `RegressionPredictor.half_widths`.

    Args:
        heads: a stack of one.
        joint: the leverage of several layers, or None.
        outputs: meaning of the heads' outputs.
        own: with ``shape`` (D, 2, L, 3), the coefficients, and ``scale`` (D,) of the residuals.
    """

    def __init__(
        self, heads: Heads, joint: JointLeverage | None, outputs: Outputs, own: Mapping[str, Tensor | None]
    ) -> None:
        shape, scale = own["shape"], own["scale"]
        assert shape is not None
        assert scale is not None
        numbers, levels = len(scale), len(outputs.levels)
        quantiles = torch.arange(numbers * 2 * levels).reshape(numbers, -1)
        mars = torch.arange(numbers * 3).reshape(numbers, -1) + quantiles.numel()
        order = torch.cat([quantiles, mars], 1).flatten().to(scale.device)
        more = None if joint is None else Standardised(joint.center, joint.spread, joint.whiten, joint.floor)
        tensors = folded(heads, outputs.names, more, order) | _linear(shape, scale)
        super().__init__([*sources_of(heads, joint), own], tensors)
        self.outputs, self.levels, self.parts = numbers, levels, (heads, joint)

    def forward(self, parts: Sequence[Tensor], widen: bool) -> tuple[Tensor, Mars, Found]:
        """Half-widths (N, D, 2, L) and MARs (N, D) of features (N, C_i) side by side, and what the heads say of them.

        Half-widths that `widen` grow beyond the reach of the training rows, see `RegressionPredictor.widened`.
        """
        tensors = self.tensors
        found = answer(tensors, torch.cat(list(parts), 1) if len(parts) > 1 else parts[0])
        steps, matrix, constant = F.softplus(found.raw), tensors["linear"], tensors["constant"]
        if steps.dtype != matrix.dtype:
            steps = steps.to(matrix.dtype)
        if self.outputs == 1:
            values = narrow_product(constant, steps, matrix).unsqueeze(1)
        else:
            values = torch.baddbmm(constant, steps.unflatten(1, (self.outputs, -1)).movedim(1, 0), matrix).movedim(0, 1)
        sides = 2 * self.levels
        total, up, down = values.narrow(2, sides, 3).unbind(2)
        bounds = values.narrow(2, 0, sides)
        if widen and found.far is not None:
            bounds = bounds.addcmul(bounds, found.far.unsqueeze(2), value=0.5)
        bounds = running_max(bounds.view(-1, self.outputs, 2, self.levels), 3)
        return bounds, Mars(total, up, down), found


def _linear(shape: Tensor, scale: Tensor) -> dict[str, Tensor]:
    """Matrices ``linear`` (D, 2 L + 3, 2 L + 3) and what is added, ``constant`` (D, 1, 2 L + 3).

    Of one output without D and turned round, as `narrow_product` takes them.
    """
    numbers, _, levels, _ = shape.shape
    wide = shape.double()
    wide = torch.where((wide == 0).all(-1, keepdim=True), wide.flip(1), wide)
    own = (shape != 0).any(-1)
    size = 2 * levels + 3
    matrix, constant = wide.new_zeros(numbers, size, size), wide.new_zeros(numbers, 1, size)
    upto = torch.ones(levels, levels, dtype=wide.dtype, device=wide.device).triu()
    for side in range(2):
        columns = slice(side * levels, (side + 1) * levels)
        for source in range(2):
            here = (own[:, side] | ~own[:, 1 - side]) == (source == side)
            part = wide[:, side] * here[..., None]
            rows = slice(source * levels, (source + 1) * levels)
            matrix[:, rows, columns] = upto * part[:, None, :, 0]
            matrix[:, size - 1 - source, columns] = part[..., 1]
        constant[:, 0, columns] = wide[:, side, :, 2]
    mars = slice(2 * levels, size)
    matrix[:, mars, mars] = torch.eye(3, dtype=wide.dtype, device=wide.device)
    kind = torch.float64 if scale.dtype == torch.float64 else torch.float32
    times = scale.double()[:, None, None]
    found = {"linear": (matrix * times).to(kind), "constant": (constant * times).to(kind)}
    return {name: own[0].T for name, own in found.items()} if numbers == 1 else found
