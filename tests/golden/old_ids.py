"""The table of methods under its new ids; goes away with the old ids."""

import torch

from splitpoint.bench.protocols import Protocol
from splitpoint.datasets import Tabular

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
