"""A small table in the place of those of the UCI experiments, for tests that ask for it."""

import pytest
import torch

from splitpoint.bench.protocols import Protocol
from splitpoint.datasets import Tabular


def made_up(_, name):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(400, 3, generator=generator).double()
    y = 100 + 30 * (x[:, :1] - x[:, 1:2] + 0.2 * torch.randn(400, 1, generator=generator))
    return Tabular(x, y, name, "target")


@pytest.fixture(scope="module")
def small_table():
    """Every data set is a made-up table of 400 rows, whose target has a deviation of about 12."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Protocol, "table", made_up)
        yield
