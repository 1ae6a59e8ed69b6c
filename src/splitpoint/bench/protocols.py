"""How the UCI experiments are set up: splits, targets, noise and budget, as the paper states them and as its code does.

`paper`: 9:1 splits, everything standardised by the training rows, noise added to the standardised targets of rows
that are either training or test rows, one budget for all sets.

`authors`: what the published code does, to compare with the published tables: 8:2 splits of boston and wine, the second
target of energy and naval, budgets of their own for three sets, yacht without its first row, noise on two further
copies of all rows made before the split, so that test inputs occur in training, and intervals of ensembles without the
spread of their members.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from splitpoint.bench.suite import Trial
from splitpoint.datasets import UCI_NOISE_LAWS, Tabular, load, split, standardise
from splitpoint.errors import SettingsError
from splitpoint.prediction import RegressionPrediction

NOISES = ("clean", "log_normal", "trimodal")
CALIBRATION_SHARE, FEWEST_CALIBRATION_ROWS = 0.3, 80
"""Share of the training rows that serve calibration. The coverage of a conformal interval varies with its calibration
rows: with 2.3 m of them its error on m test rows stays within 1.2 times what those leave to chance.
"""


Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Budget:
    """How every network of a data set is trained."""

    learning_rate: float = 1e-4
    batch_size: int = 64
    epochs: int = 400


@dataclass(frozen=True)
class Protocol:
    """One way to set the experiments up.

    Attributes:
        name: of the protocol.
        test_shares: of sets that differ from 0.1.
        targets: of sets with several.
        budgets: of sets that differ from `Budget()`.
        skipped_rows: rows dropped at the start of a set.
        leaks: whether noise is added to copies of the rows before the split.
        own_ensembles: whether ensembles are judged as the published code does, see `as_published`.
    """

    name: str
    test_shares: dict[str, float]
    targets: dict[str, str]
    budgets: dict[str, Budget]
    skipped_rows: dict[str, int]
    leaks: bool
    own_ensembles: bool = False

    def budget(self, dataset: str) -> Budget:
        """How the networks of a data set are trained."""
        return self.budgets.get(dataset, Budget())

    def table(self, dataset: str) -> Tabular:
        """The data set with the target of this protocol."""
        return load(dataset, self.targets.get(dataset))

    def copies(self, noise: str) -> int:
        """How many times a trial holds every row of the data set."""
        return 3 if self.leaks and noise != "clean" else 1

    def as_published(self, method: str, prediction: RegressionPrediction) -> RegressionPrediction:
        """The prediction of a method, of ensembles as the published code has it where the protocol does.

        The interval is then ``mean -+ 2 sigma`` with the mean noise alone, the total score the sum of both deviations.
        """
        if not self.own_ensembles or method not in ("mc_dropout", "deep_ensemble"):
            return prediction
        sigma = prediction.aleatoric.sqrt()
        half = 2 * sigma.unsqueeze(-1) * torch.ones_like(prediction.lowers)
        mean = prediction.mean.unsqueeze(-1)
        return replace(prediction, lowers=mean - half, uppers=mean + half, total=sigma + prediction.epistemic.sqrt())

    def trial(self, table: Tabular, noise: str, trial: int, share: float | None = None) -> Trial:
        """Standardised rows of one trial, which depend on the protocol, the set, the noise and the number only.

        A share of the training rows serves calibration, or three tenths but at least 80 of them where none is given;
        the rows of a smaller share are part of those of a larger one.
        """
        if noise not in NOISES:
            raise SettingsError(f"Expected noise to be one of {NOISES}, but got {noise!r}.")
        first = self.skipped_rows.get(table.name, 0)
        x, y = table.X[first:], table.y[first:]
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.name} {table.name} {noise} {trial}".encode()))
        if self.leaks and noise != "clean":
            x, y = _with_noisy_copies(x, y, noise, generator)
        train, test = split(len(x), trial, self.test_shares.get(table.name, 0.1))
        parts = standardise(x, y, train, test)
        y_train, y_test = parts.y_train, parts.y_test
        if noise != "clean" and not self.leaks:
            draw = UCI_NOISE_LAWS[noise]
            y_train = y_train + draw(len(y_train), generator)[:, None].float()
            y_test = y_test + draw(len(y_test), generator)[:, None].float()
        return trial_of((parts.x_train, y_train), (parts.x_test, y_test), generator, parts.scale, share)


def trial_of(
    train: Rows, test: Rows, generator: torch.Generator, scale: float = 1.0, share: float | None = None
) -> Trial:
    """A trial with random training rows for calibration; see `Protocol.trial` for how many."""
    inputs, targets = train
    rows = len(inputs)
    count = max(int(CALIBRATION_SHARE * rows), FEWEST_CALIBRATION_ROWS) if share is None else int(share * rows)
    held = torch.zeros(rows, dtype=torch.bool)
    held[torch.randperm(rows, generator=generator)[:count]] = True
    return Trial(train, (inputs[~held], targets[~held]), (inputs[held], targets[held]), test, scale)


def _with_noisy_copies(x: Tensor, y: Tensor, noise: str, generator: torch.Generator) -> Rows:
    """The rows and two copies whose targets carry noise in units of the targets' deviation."""
    spread = y.double().std(correction=0)
    draws = [UCI_NOISE_LAWS[f"authors_{noise}"](len(y), generator)[:, None].to(y) for _ in range(2)]
    return torch.cat([x] * 3), torch.cat([y, *(y + spread * draw for draw in draws)])


PROTOCOLS: dict[str, Protocol] = {
    "paper": Protocol("paper", {}, {}, {}, {}, leaks=False),
    "authors": Protocol(
        "authors",
        test_shares={"boston": 0.2, "wine": 0.2},
        targets={"energy": "cooling", "naval": "turbine"},
        budgets={
            "naval": Budget(learning_rate=5e-4),
            "yacht": Budget(batch_size=16),
            "energy": Budget(batch_size=32),
        },
        skipped_rows={"yacht": 1},
        leaks=True,
        own_ensembles=True,
    ),
}
"""Protocols by name."""
