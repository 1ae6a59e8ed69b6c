"""The table of methods under its new ids; goes away with the old ids."""

from dataclasses import dataclass

import torch

from splitpoint import SplitPointClassifier, SplitPointRegressor
from splitpoint.baselines import METHODS as OLD
from splitpoint.bench.protocols import Protocol
from splitpoint.datasets import Tabular


@dataclass(frozen=True)
class OldRecipe:
    name: str
    tasks: tuple
    start: str
    held_out: tuple = ()
    epistemic: str = "sds"

    def __call__(self, *, task="regression", **settings):
        if not self.name.startswith("splitpoint"):
            return OLD[self.name](**settings)
        kind = SplitPointRegressor if task == "regression" else SplitPointClassifier
        make = kind.paper if "paper" in self.name else kind
        if self.name == "splitpoint_paper_calibrated" and task == "regression":
            settings = {"interval": "consistent"} | settings
        return make(**settings)


BOTH = ("regression", "classification")
METHODS = {
    name: OldRecipe(
        name,
        kind.about.tasks,
        "model" if kind.about.post_hoc else "factory",
        kind.about.tasks if "calibration" in kind.about.needs else (),
        kind.about.epistemic,
    )
    for name, kind in OLD.items()
    if not name.startswith("splitpoint")
} | {
    "splitpoint_paper": OldRecipe("splitpoint_paper", BOTH, "model"),
    "splitpoint_paper_calibrated": OldRecipe("splitpoint_paper_calibrated", BOTH, "model", ("classification",)),
    "splitpoint": OldRecipe("splitpoint", BOTH, "model"),
    "splitpoint_conformal": OldRecipe("splitpoint_conformal", BOTH, "model", BOTH),
}
NEW = {
    "splitpoint": "splitpoint_paper",
    "splitpoint_calibrated": "splitpoint_paper_calibrated",
    "splitpoint_default": "splitpoint",
    "splitpoint_default_calibrated": "splitpoint_conformal",
}


def named(record):
    dataset, _, network = record.dataset.partition("/")
    names = [dataset, network, record.noise, NEW.get(record.method, record.method), record.variant, str(record.trial)]
    metrics = {
        {"auroc_adv": "auroc_adversarial", "auroc_adv_entropy": "auroc_adversarial_entropy"}.get(name, name): value
        for name, value in record.metrics.items()
    }
    return " ".join(filter(None, names)), metrics


def synthetic(_, name):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(400, 3, generator=generator).double()
    y = 100 + 30 * (x[:, :1] - x[:, 1:2] + 0.2 * torch.randn(400, 1, generator=generator))
    return Tabular(x, y, name, "target")


def made_up_table(patch):
    patch.setattr(Protocol, "table", synthetic)
