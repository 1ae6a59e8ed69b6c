"""The table of methods in its next form, over the one there is; goes away with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from splitpoint.baselines import METHODS as BEFORE
from splitpoint.classification import SplitPointClassifier
from splitpoint.regression import SplitPointRegressor


@dataclass(frozen=True)
class Recipe:
    """A method."""

    make: Callable[..., Any]
    tasks: tuple[str, ...]
    start: str
    held_out: tuple[str, ...] = ()

    def __call__(self, **settings: Any) -> Any:
        """The method."""
        return self.make(**settings)


BOTH = ("regression", "classification")
ORDER = (
    *("softmax", "temperature_scaling", "energy", "oc", "ddu", "mc_dropout", "deep_ensemble", "evidential_regression"),
    *("evidential_classification", "evidential_quantile", "sqr_oc", "gaussian", "laplace", "conformal"),
)
HELD_OUT = {"temperature_scaling": ("classification",), "conformal": BOTH}
METHODS: dict[str, Recipe] = {
    **{
        name: Recipe(
            BEFORE[name],
            BEFORE[name].about.tasks,
            "model" if BEFORE[name].about.post_hoc else "factory",
            HELD_OUT.get(name, ()),
        )
        for name in ORDER
    },
    "splitpoint_paper": Recipe(SplitPointRegressor.paper, BOTH, "model"),
    "splitpoint_paper_calibrated": Recipe(
        partial(SplitPointRegressor.paper, interval="consistent"), BOTH, "model", ("classification",)
    ),
    "splitpoint": Recipe(SplitPointRegressor, BOTH, "model"),
    "splitpoint_conformal": Recipe(SplitPointRegressor, BOTH, "model", BOTH),
    "splitpoint_layers": Recipe(SplitPointClassifier, BOTH, "model", BOTH),
}
