"""How much CPU time the UCI suite saves: all trials of a set as one stack against one network at a time, in one run.

    python benchmarks/uci_speed.py [--datasets boston concrete kin8nm] [--epochs 100] [--trials 20] [--plain-trials 2]

Both sides train what `splitpoint bench uci` trains under the protocol of the paper: the same rows, architectures,
losses, batch sizes and epochs, on one thread, with denormal numbers flushed, after a short run to warm up.

suite: the stack of all trials, as the suite trains it, everything included until predictors are there.

plain: the usual loop, one trial after the other: `nn.Sequential`, a shuffling `DataLoader` over a `TensorDataset`,
`torch.optim.Adam`, ensembles member by member. Post-hoc methods share one base network for each trial on both sides,
which has a line of its own, and split-point heads are trained by the same plain loop from stored features, with a copy
for every fold where the suite has one. Only loops are timed: what the suite does besides (units, certificates,
leverages, shapes, the choice of the best epoch) is left out of the plain side. Its trials cost the same each, so that
`--plain-trials` of them are timed and multiplied. Laplace and conformal train nothing; both sides make the same calls.
The conformal factors of split-point heads, which take no time, are left out: base networks of few epochs may be so far
off that one side has too few residuals for them.

The sets are a small one, a middle one and one of the four large ones, where nearly all of the suite's time goes: there
networks take 46,000 to 257,000 steps, and heads of the default recipe 3,000 at most, against 3,200 and 1,000 on boston.

Networks get 400 epochs in the suite and heads of the default recipe at least 1,000 steps; both are cut down here to the
share that `--epochs` is of 400, so that methods keep their weight in the total. Fixed costs of the suite, which are not
cut down, then count for more than in a full run. CPU seconds are sums over the sets; ratios are plain over suite.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from splitpoint import SplitPointRegressor
from splitpoint.baselines import METHODS
from splitpoint.baselines.evidential_quantile import quantile_nll
from splitpoint.baselines.evidential_regression import NormalInverseGamma, student_nll
from splitpoint.baselines.gaussian import gaussian_nll
from splitpoint.bench.protocols import PROTOCOLS, Budget, Rows
from splitpoint.bench.workers import keep_memory
from splitpoint.losses import coverage_loss, masked_mse, pinball_errors, pinball_loss
from splitpoint.networks import NetworkTraining, train_networks
from splitpoint.tasks import Regression
from splitpoint.training import Training

HIDDEN, LEVEL, MEMBERS, FOLDS = 50, 0.95, 5, 5
QUANTILES = torch.tensor([[0.025], [0.5], [0.975]])

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def perceptron(inputs: int, outputs: int, dropout: float = 0.0) -> nn.Module:
    """The network of the UCI experiments."""
    between = [nn.ReLU(), nn.Dropout(dropout)] if dropout else [nn.ReLU()]
    return nn.Sequential(nn.Linear(inputs, HIDDEN), *between, nn.Linear(HIDDEN, outputs))


def plain_loop(network: nn.Module, rows: Rows, loss: Loss, budget: Budget, decay: bool = False) -> nn.Module:
    """Train one network as everyone does."""
    loader = DataLoader(TensorDataset(*rows), batch_size=budget.batch_size, shuffle=True)
    optimiser = torch.optim.Adam(network.parameters(), lr=budget.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, budget.epochs * len(loader)) if decay else None
    for _ in range(budget.epochs):
        for x, y in loader:
            optimiser.zero_grad()
            loss(network, x, y).backward()
            optimiser.step()
            if schedule is not None:
                schedule.step()
    return network.eval()


# Losses of a batch, as a plain loop has them


def squared(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean squared error."""
    return F.mse_loss(network(x), y)


def gaussian(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Gaussian likelihood of a mean and a variance."""
    return gaussian_nll(network(x).unflatten(1, (2, 1)), y).mean()


def evidential(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Normal-Inverse-Gamma likelihood with the evidence regulariser."""
    prior = NormalInverseGamma.of(network(x).unflatten(1, (4, 1)))
    error = y - prior.gamma
    nll = student_nll(error, prior.nu, prior.alpha, 2 * prior.beta * (1 + prior.nu))
    return (nll + 0.01 * error.abs() * (2 * prior.nu + prior.alpha)).mean()


def evidential_quantiles(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The same for three quantiles."""
    prior = NormalInverseGamma.of(network(x).unflatten(1, (4, 3, 1)))
    error = y[:, None] - prior.gamma
    evidence = 2 * prior.nu + prior.alpha + 1 / prior.beta
    return (quantile_nll(prior, y[:, None], QUANTILES) + 0.5 * pinball_errors(error, QUANTILES) * evidence).mean()


def any_quantile(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Pinball loss at a random level that the network is told."""
    tau = torch.rand(len(x), 1)
    return pinball_errors(y - network(torch.cat([x, 12 * (tau - 0.5)], 1)), tau).mean()


def paper_heads(network: nn.Module, features: Tensor, residual: Tensor) -> Tensor:
    """Coverage loss of two half-widths and squared error of three MARs, from one trunk."""
    return _heads(F.softplus(network(features)), residual, partial(coverage_loss, form="authors"))


def default_heads(network: nn.Module, features: Tensor, residual: Tensor) -> Tensor:
    """Pinball loss of the half-widths of one trunk and squared error of the MARs of another."""
    assert isinstance(network, nn.ModuleList)
    raw = torch.cat([trunk(features) for trunk in network], 1)
    return _heads(F.softplus(raw), residual, pinball_loss)


def _heads(found: Tensor, residual: Tensor, quantile: Callable[..., Tensor]) -> Tensor:
    size, up, down = residual.abs(), residual > 0, residual < 0
    level = torch.tensor(LEVEL)
    bounds = [quantile(size, found[:, i : i + 1], level, mask, dim=0) for i, mask in enumerate((down, up))]
    squares = [masked_mse(found[:, i + 2 : i + 3], size, mask, dim=0) for i, mask in enumerate((up | down, up, down))]
    return torch.stack([*bounds, *squares]).sum()


# The two sides


@dataclass(frozen=True)
class Job:
    """Rows of all trials of one set, and how networks are trained."""

    train: list[Rows]
    proper: list[Rows]
    calibration: list[Rows]
    budget: Budget

    @property
    def inputs(self) -> int:
        """Features of the set."""
        return int(self.train[0][0].shape[1])

    @property
    def head_epochs(self) -> int:
        """Epochs of heads of the default recipe, cut down as those of the networks are."""
        return max(1, round(Training().passes(len(self.train[0][0])) * self.budget.epochs / Budget().epochs))

    @staticmethod
    def of(dataset: str, trials: int, epochs: int) -> Job:
        """The trials of a set under the protocol of the paper."""
        protocol = PROTOCOLS["paper"]
        table = protocol.table(dataset)
        found = [protocol.trial(table, "clean", number) for number in range(trials)]
        parts = ([getattr(trial, part) for trial in found] for part in ("train", "proper", "calibration"))
        return Job(*parts, budget=replace(protocol.budget(dataset), epochs=epochs))


class Clock:
    """CPU seconds by label."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, label: str, call: Callable[[], Any], factor: float = 1.0) -> Any:
        """Run a call and add its CPU time."""
        began = time.process_time()
        result = call()
        self.seconds[label] = self.seconds.get(label, 0.0) + factor * (time.process_time() - began)
        return result


TRAINED = ("mc_dropout", "deep_ensemble", "evidential_regression", "evidential_quantile", "sqr_oc", "gaussian")


def suite(job: Job, clock: Clock) -> None:
    """Train everything as stacks of all trials."""
    count, settings = len(job.train), asdict(job.budget)
    default = SplitPointRegressor(epochs=job.head_epochs)
    seeds = list(range(count))
    factories = [partial(perceptron, job.inputs, 1)] * count

    def fit(method: Any, models: Sequence[Any], data: Sequence[Rows], **rest: Any) -> Any:
        return method.fit_many(models, data, seeds=seeds, progress=False, **rest)

    for name in TRAINED:
        clock.time(name, lambda name=name: fit(METHODS[name](**settings), factories, job.train))

    def bases(data: Sequence[Rows]) -> list[nn.Module]:
        training, task = NetworkTraining(**settings), Regression()
        return train_networks(factories, data, seeds, training, decide=lambda *_: task, progress=False)

    base = clock.time("base", lambda: bases(job.train))
    clock.time("laplace", lambda: fit(METHODS["laplace"](), base, job.train))
    clock.time("splitpoint_paper", lambda: fit(SplitPointRegressor.paper(**settings), base, job.train))
    clock.time("splitpoint", lambda: fit(default, base, job.train))
    held = clock.time("base held out", lambda: bases(job.proper))
    clock.time("conformal", lambda: fit(METHODS["conformal"](), held, job.proper, calibration=job.calibration))
    clock.time("splitpoint_conformal", lambda: fit(default, held, job.proper))


def one_by_one(job: Job, clock: Clock, timed: int) -> None:
    """Train `timed` of the trials with plain loops and multiply."""
    factor = len(job.train) / timed
    for number in range(timed):
        train, proper = job.train[number], job.proper[number]
        for name, network, loss in _networks(job.inputs):
            run = partial(plain_loop, network, train, loss, job.budget)
            clock.time(name, run, factor)
        base = clock.time("base", lambda rows=train: _base(job, rows), factor)
        clock.time("laplace", lambda b=base, r=train: METHODS["laplace"]().fit(b, r, progress=False), factor)
        clock.time("splitpoint_paper", lambda b=base, r=train: _paper_heads(b, r, job.budget), factor)
        clock.time("splitpoint", lambda b=base, r=train: _default_heads(b, r, job), factor)
        held = clock.time("base held out", lambda rows=proper: _base(job, rows), factor)
        conformal, calibration = METHODS["conformal"](), job.calibration[number]
        run = partial(conformal.fit, held, proper, calibration=calibration, progress=False)
        clock.time("conformal", run, factor)
        clock.time("splitpoint_conformal", lambda b=held, r=proper: _default_heads(b, r, job), factor)


def _networks(inputs: int) -> Iterator[tuple[str, nn.Module, Loss]]:
    yield "mc_dropout", perceptron(inputs, 2, dropout=0.2), gaussian
    for _ in range(MEMBERS):
        yield "deep_ensemble", perceptron(inputs, 2), gaussian
    yield "evidential_regression", perceptron(inputs, 4), evidential
    yield "evidential_quantile", perceptron(inputs, 12), evidential_quantiles
    yield "sqr_oc", perceptron(inputs + 1, 1), any_quantile
    yield "gaussian", perceptron(inputs, 2), gaussian


def _base(job: Job, rows: Rows) -> nn.Module:
    return plain_loop(perceptron(job.inputs, 1), rows, squared, job.budget)


def _residuals(base: nn.Module, rows: Rows) -> Rows:
    """Penultimate features and residuals of a base network."""
    assert isinstance(base, nn.Sequential)
    with torch.no_grad():
        features = base[:-1](rows[0])
        return features, rows[1] - base[-1](features)


def _paper_heads(base: nn.Module, rows: Rows, budget: Budget) -> None:
    plain_loop(perceptron(HIDDEN, 5), _residuals(base, rows), paper_heads, budget)


def _default_heads(base: nn.Module, rows: Rows, job: Job) -> None:
    features, residual = _residuals(base, rows)
    budget = Budget(2e-3, Training().batch(len(features)), job.head_epochs)
    fold = torch.randperm(len(features)) % FOLDS
    for number in range(FOLDS + 1):
        kept = fold != number
        own = features[kept], residual[kept]
        quantiles = perceptron(HIDDEN + 1, 2)
        mars = nn.Sequential(
            nn.Linear(HIDDEN + 1, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 3),
        )  # fmt: skip
        wide = F.pad(own[0], (0, 1)), own[1]  # a column in the place of the leverage
        plain_loop(nn.ModuleList([quantiles, mars]), wide, default_heads, budget, decay=True)


def main() -> None:
    """Print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["boston", "concrete", "kin8nm"])
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--plain-trials", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_memory()
    warm = Job.of(options.datasets[0], 2, 1)
    suite(warm, Clock())
    one_by_one(warm, Clock(), 1)
    ours, theirs = Clock(), Clock()
    jobs = [Job.of(dataset, options.trials, options.epochs) for dataset in options.datasets]
    for job in jobs:
        suite(job, ours)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for job in jobs:
        one_by_one(job, theirs, options.plain_trials)
    print(f"{', '.join(options.datasets)}; {options.trials} trials, {options.epochs} epochs; CPU seconds\n")
    print("| trained | suite | plain | plain / suite |\n|---|---|---|---|")
    for name, seconds in ours.seconds.items():
        print(f"| {name} | {seconds:.1f} | {theirs.seconds[name]:.1f} | {theirs.seconds[name] / seconds:.1f} |")
    total = sum(ours.seconds.values()), sum(theirs.seconds.values())
    print(f"| total | {total[0]:.1f} | {total[1]:.1f} | {total[1] / total[0]:.1f} |")
    print(f"\nPeak memory of the suite, libraries included: {peak:.0f} MB")


if __name__ == "__main__":
    main()
