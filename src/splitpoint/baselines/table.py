"""The table of methods: what each is called, can do, needs and costs, and who defined it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from splitpoint.baselines.conformal import Conformal
from splitpoint.baselines.ddu import Ddu
from splitpoint.baselines.deep_ensemble import DeepEnsemble
from splitpoint.baselines.energy import Energy
from splitpoint.baselines.evidential_classification import EvidentialClassification
from splitpoint.baselines.evidential_quantile import EvidentialQuantile
from splitpoint.baselines.evidential_regression import EvidentialRegression
from splitpoint.baselines.gaussian import Gaussian
from splitpoint.baselines.laplace import Laplace
from splitpoint.baselines.mc_dropout import McDropout
from splitpoint.baselines.oc import OrthonormalCertificates
from splitpoint.baselines.rcml import Rcml
from splitpoint.baselines.softmax import Softmax
from splitpoint.baselines.splitpoint import SplitPoint
from splitpoint.baselines.sqr_oc import SqrOc
from splitpoint.baselines.temperature_scaling import TemperatureScaling
from splitpoint.errors import SettingsError
from splitpoint.method import Method
from splitpoint.tasks import TASKS, TaskName

Start = Literal["factory", "model"]
CLASSES: tuple[TaskName, ...] = ("classification",)


@dataclass(frozen=True)
class Recipe:
    """One line of the table; calling it with settings gives the method.

    Attributes:
        method: class of the method.
        title: for people.
        start: what `fit` starts from: a trained model, or a function that builds an untrained one.
        passes: forward passes of a network for one prediction, in words.
        epistemic: what the epistemic score is, or "none" where there is no such part.
        reference: who defined it.
        held_out: tasks for which `fit` needs calibration data.
        preset: settings that make the recipe.
    """

    method: type[Method[Any]]
    title: str
    start: Start
    passes: str
    epistemic: str
    reference: str
    held_out: tuple[TaskName, ...] = ()
    preset: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, **settings: Any) -> Method[Any]:
        """The method with these settings; `task` may be given to all, where it is one that they can do."""
        if len(self.tasks) == 1 and "task" in settings:
            task = settings.pop("task")
            if task not in (*self.tasks, "auto"):
                raise SettingsError(f"Expected task to be one of {self.tasks}, but got {task!r}.")
        return self.method(**{**self.preset, **settings})

    @property
    def tasks(self) -> tuple[TaskName, ...]:
        """What it can do."""
        return self.method.tasks

    @property
    def needs(self) -> str:
        """What `fit` needs beside training data."""
        if not self.held_out:
            return self.start
        some = "" if set(self.held_out) == set(self.tasks) else f" ({', '.join(self.held_out)})"
        return f"{self.start} + held-out{some}"


SDS, ZHAO = "self-consistency discrepancy (SDS)", "Zhao & Chen 2025"
SUPPORT = "noise times leverage; distance of the features and energy"
CERTIFICATES, TAGASOVSKA = "size of the certificates", "Tagasovska & Lopez-Paz 2019"
SPREAD, EVIDENCE = "variance of the means; mutual information", "beta / (nu (alpha - 1))"

# fmt: off
METHODS: dict[str, Recipe] = {
    "softmax": Recipe(Softmax, "Softmax", "model", "1", "1 - max p", "Hendrycks & Gimpel 2017"),
    "temperature_scaling": Recipe(
        TemperatureScaling, "Temperature scaling", "model", "1", "1 - max p", "Guo et al. 2017", CLASSES),
    "energy": Recipe(Energy, "Energy score", "model", "1", "-logsumexp of the logits", "Liu et al. 2020"),
    "oc": Recipe(OrthonormalCertificates, "OC", "model", "1", CERTIFICATES, TAGASOVSKA),
    "ddu": Recipe(Ddu, "DDU", "model", "1", "-log density of the features", "Mukhoti et al. 2023"),
    "mc_dropout": Recipe(McDropout, "MC dropout", "factory", "T = 5", SPREAD, "Gal & Ghahramani 2016"),
    "deep_ensemble": Recipe(DeepEnsemble, "Deep ensemble", "factory", "M = 5", SPREAD, "Lakshminarayanan et al. 2017"),
    "evidential_regression": Recipe(
        EvidentialRegression, "Evidential regression", "factory", "1", EVIDENCE, "Amini et al. 2020"),
    "evidential_classification": Recipe(
        EvidentialClassification, "Evidential classification", "factory", "1", "K / S", "Sensoy et al. 2018"),
    "rcml": Recipe(Rcml, "RCML", "factory", "1", "K / S of the mean evidence", "Xu et al. 2024"),
    "evidential_quantile": Recipe(
        EvidentialQuantile, "Evidential quantiles", "factory", "1", EVIDENCE, "Huttel et al. 2023"),
    "sqr_oc": Recipe(SqrOc, "SQR-OC", "factory", "2L + 1 = 3", CERTIFICATES, TAGASOVSKA),
    "gaussian": Recipe(Gaussian, "Gaussian", "factory", "1", "none", "Nix & Weigend 1994"),
    "laplace": Recipe(
        Laplace, "Laplace", "model", "1", "variance of the output, or mutual information", "Daxberger et al. 2021"),
    "conformal": Recipe(Conformal, "Conformal", "model", "1", "none", "Vovk et al. 2005; Romano et al. 2020", TASKS),
    "splitpoint_paper": Recipe(
        SplitPoint, "Split-point (paper)", "model", "1", SDS, ZHAO, preset={"paper": True}),
    "splitpoint_paper_calibrated": Recipe(
        SplitPoint, "Split-point calibrated (paper)", "model", "1", SDS, ZHAO, CLASSES,
        preset={"paper": True, "held_out": True}),
    "splitpoint": Recipe(SplitPoint, "Split-point (ours)", "model", "1", SUPPORT, ZHAO),
    "splitpoint_conformal": Recipe(
        SplitPoint, "Split-point calibrated (ours)", "model", "1", SUPPORT, ZHAO, TASKS, preset={"held_out": True}),
    "splitpoint_layers": Recipe(
        SplitPoint, "Split-point layers (ours)", "model", "1", SUPPORT, ZHAO, preset={"layers": True}),
}
# fmt: on
"""All methods by their id, in the order of tables and figures: rivals, the paper's recipe, ours."""


def catalogue() -> str:
    """The table for people: one line for each method."""
    rows = [("id", "task", "starts from", "passes", "reference")]
    for name, recipe in METHODS.items():
        task = "both" if len(recipe.tasks) > 1 else recipe.tasks[0]
        rows.append((name, task, recipe.needs, recipe.passes, recipe.reference))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]]) + "\n\n" + textwrap.fill(NOTE, 110)


NOTE = (
    "Methods that start from a model are post-hoc: they take a trained one and leave it as it is, or train one first "
    "when they get a factory (a function that builds an untrained network). Those that start from a factory train "
    "networks of their own on the backbone that it builds. Held-out: fit needs calibration= data that the model was "
    "not trained on. Passes are forward passes of a network for one prediction (L levels, T masks, M members)."
)
