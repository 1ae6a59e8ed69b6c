"""A corpus of bad inputs over the whole public surface, each with what it has to end in.

Most must be refused in one sentence. A few are legitimate and must give the right answer, which `right` tells.
"""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

import splitpoint as sp
from splitpoint.baselines import METHODS, NetworkTraining
from splitpoint.cli import main
from splitpoint.settings import _annotations

ROWS = 60
NAN, INF = math.nan, math.inf


@dataclass(frozen=True)
class Case:
    """A bad input: what is done with it, and what a result must be, where it is not to be refused."""

    name: str
    call: Callable[[], Any]
    right: Callable[[Any], bool] | None = None


def complaint(case: Case) -> str:
    """What is wrong with how a case ends; empty where it ends as it must."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = case.call()
        except sp.SplitPointError as error:
            return _about(str(error))
        except Exception as error:
            return f"raised {type(error).__name__}: {error}"[:300]
        if case.right is None:
            return f"was accepted and gave {type(found).__name__}"
        return "" if case.right(found) else "gave a wrong answer"


def _about(text: str) -> str:
    if not text.startswith("Expected ") or not text.endswith((".", "?")) or "\n" in text or len(text) > 900:
        return f"is no sentence: {text[:300]}"
    return ""


# What the cases are made with


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def network(outputs: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, outputs)).eval()


X, Y, LABEL = drawn(0, ROWS, 3), drawn(1, ROWS, 1), torch.arange(ROWS) % 3
DATA = {"regression": (X, Y), "classification": (X, LABEL)}


def short(name: str, **changes: Any) -> Any:
    """A method with as little training as it can have."""
    known = METHODS[name]().__dataclass_fields__
    known = known if "settings" not in known else {"epochs": 0}
    wanted = {"epochs": 1, "members": 2}
    return METHODS[name](**{key: value for key, value in wanted.items() if key in known} | changes)


@cache
def fitted(name: str, task: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return short(name).fit(
            network(1 if task == "regression" else 3), DATA[task], calibration=DATA[task], progress=False
        )


@cache
def predicted(task: str) -> Any:
    return fitted("splitpoint", task)(X)


class Two(nn.Module):
    """Two modalities."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text, self.last = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(8, 3)

    def forward(self, image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        return self.last(torch.cat([self.image(image), self.text(text)], 1).relu())


class Mixed(nn.Module):
    """Numbers and tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(9, 4), nn.Linear(7, 1)

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return self.last(torch.cat([x, self.words(tokens).mean(1)], 1))


class Answers(nn.Module):
    """Answers whatever it is told to."""

    def __init__(self, answer: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.last, self.answer = nn.Linear(3, 1), answer

    def forward(self, x: torch.Tensor) -> Any:
        return self.answer(self.last(x))


# Settings


def wrong_values(name: str, wanted: Any) -> list[Any]:
    """Values that a setting of this kind does not take."""
    text = str(wanted)
    found: list[Any] = [{"a": 1}]
    found += ["no"] if "bool" in text and "str" not in text else []
    found += [True, 2.5] if "int" in text and "float" not in text and name != "output_key" else []
    found += [NAN] if "float" in text else []
    found += ["nonsense"] if "Literal" in text else []
    return found


def settings_cases() -> Iterator[Case]:
    for name, recipe in METHODS.items():
        kind = type(recipe())
        if "settings" in recipe().__dataclass_fields__:
            continue
        for setting, wanted in _annotations(kind).items():
            for wrong in wrong_values(setting, wanted):
                yield Case(f"settings {name} {setting}={wrong!r}", partial(recipe, **{setting: wrong}))
    for kind in (sp.SplitPointRegressor, sp.SplitPointClassifier):
        for setting, wanted in _annotations(kind).items():
            for wrong in wrong_values(setting, wanted):
                yield Case(f"settings {kind.__name__} {setting}={wrong!r}", partial(kind, **{setting: wrong}))
    for setting, wanted in _annotations(NetworkTraining).items():
        for wrong in wrong_values(setting, wanted):
            yield Case(f"settings NetworkTraining {setting}={wrong!r}", partial(NetworkTraining, **{setting: wrong}))
    yield Case(
        "settings of NumPy are Python's",
        lambda: sp.SplitPointRegressor(epochs=np.int64(3), learning_rate=np.float32(0.5), confidence_level=[0.5, 0.9]),
        lambda method: type(method.epochs) is int and method.confidence_level == (0.5, 0.9),
    )
    for wrong in ([], "ab", {"a": "0"}, {"a": "0", 1: "2"}, {"a": 3, "b": "2"}, None):
        yield Case(f"settings Agreement branches={wrong!r}", partial(sp.Agreement, branches=wrong))
    for kind, wrong in ((sp.Classification, "scores"), (sp.Classification, 3), (sp.Classification, None)):
        yield Case(f"settings {kind.__name__} output={wrong!r}", partial(kind, output=wrong))


# Data that methods are fitted on


def bad_data(task: str) -> dict[str, Any]:
    y = DATA[task][1]
    hole = X.clone()
    hole[7, 1] = NAN
    found: dict[str, Any] = {
        "NaN inputs": (hole, y),
        "infinite inputs": (torch.where(hole.isnan(), INF, hole), y),
        "too few columns": (X[:, :2], y),
        "texts": (np.array([["a", "b", "c"]] * ROWS), y),
        "objects": (np.array([[None, 1, 2]] * ROWS), y),
        "complex inputs": (torch.complex(X, X), y),
        "masked inputs": (np.ma.masked_array(X.numpy(), X.numpy() > 1), y),
        "a number": 3,
        "None": None,
        "a text": "data",
        "an empty list": [],
        "no rows": (X[:0], y[:0]),
        "other lengths": (X, y[:5]),
        "X alone": X,
        "no axes": (torch.tensor(1.0), torch.tensor(2.0)),
        "batches of nothing": [()],
        "batches of texts": ["ab", "cd"],
        "a list of lists": [[[1.0, 2.0, 3.0]], ["a"]],
        "text targets": (X, np.array(["a"] * ROWS)),
        "complex targets": (X, torch.complex(Y, Y)),
        "targets of objects": (X, np.array([object()] * ROWS)),
        "targets of another shape": (X, torch.zeros(ROWS, 2, 2)),
        "sparse targets": (X, torch.ones(ROWS, 1).to_sparse()),
        "missing targets": (X, torch.full((ROWS,), -100) if task == "classification" else torch.full_like(Y, NAN)),
    }
    if task == "regression":
        found["infinite targets"] = (X, torch.where(Y > 1, INF, Y))
    else:
        found["labels too large"] = (X, LABEL + 1)
        found["negative labels"] = (X, LABEL - 1)
        found["masked labels"] = (X, np.ma.masked_array(LABEL.numpy(), LABEL.numpy() == 1))
    return found


def data_cases() -> Iterator[Case]:
    whole = {"splitpoint", "softmax", "laplace", "gaussian", "evidential_classification"}
    few = ("NaN inputs", "complex targets", "None", "other lengths", "missing targets")
    for name, recipe in METHODS.items():
        for task in recipe.tasks:
            for what, data in bad_data(task).items():
                if name in whole or what in few:
                    call = partial(fit_on, name, task, data)
                    yield Case(f"fit {name} {task} {what}", call)
    yield Case("fit classifier fractions", partial(fit_on, "softmax", "classification", (X, LABEL + 0.5)))
    models = {
        "a text": "resnet",
        "None": None,
        "a number": 3,
        "a class": nn.Linear,
        "nothing built": lambda: None,
        "complex outputs": Answers(lambda out: torch.complex(out, out)),
        "NaN outputs": Answers(lambda out: out * NAN),
        "no tensor": Answers(lambda _: "a"),
        "two tensors": Answers(lambda out: (out, out)),
        "None as output": Answers(lambda _: None),
        "an empty dict": Answers(lambda _: {}),
        "a forward that raises": Answers(lambda _: 1 // 0),
        "a lookup that fails": Answers(lambda _: {}["x"]),
    }
    for name in ("splitpoint", "laplace", "gaussian", "oc"):
        for what, model in models.items():
            yield Case(f"fit {name} model {what}", partial(fit_on, name, "regression", (X, Y), model))
    regressor = sp.SplitPointRegressor(epochs=1, folds=0)
    for layer in ("nope", 3, [], [None], {}, {"a": 3}, nn.Linear(2, 2), "0@9", "nope:input", "0.nope()"):
        changed = partial(layered, layer)
        yield Case(f"fit layer={layer!r}"[:60], changed)
    for groups in (range(7), [[1]], "abc", [None] * ROWS, 3, np.array([NAN] * ROWS)):
        yield Case(
            f"fit groups={groups!r}"[:60], partial(regressor.fit, network(1), (X, Y), groups=groups, progress=False)
        )
    for key in (7, "nope", -9):
        yield Case(
            f"fit output_key={key!r}",
            partial(
                sp.SplitPointRegressor(epochs=1, output_key=key).fit,
                Answers(lambda out: {"a": out}),
                (X, Y),
                progress=False,
            ),
        )


def fit_on(name: str, task: str, data: Any, model: Any = 0) -> Any:
    start = network(1 if task == "regression" else 3) if model == 0 else model
    changes = {"task": task} if "task" in METHODS[name]().__dataclass_fields__ else {}
    return short(name, **changes).fit(start, data, calibration=DATA[task], progress=False)


def layered(layer: Any) -> Any:
    return sp.SplitPointRegressor(epochs=1, folds=0, layer=layer).fit(network(1), (X, Y), progress=False)


# Trainings that cannot go well


def training_cases() -> Iterator[Case]:
    for name in [name for name in METHODS if METHODS[name].start == "factory" and "regression" in METHODS[name].tasks]:
        if name != "sqr_oc":  # whose loss is bounded
            rate = {"learning_rate": 1e10, "epochs": 4}
            yield Case(
                f"train {name} rate", lambda n=name, r=rate: METHODS[n](**r).fit(network(1), (X, Y), progress=False)
            )
        yield Case(
            f"train {name} huge targets",
            lambda n=name: METHODS[n](epochs=3).fit(network(1), (X, 1e300 * Y.double()), progress=False),
        )
    wild = {"learning_rate": 1e10, "epochs": 2}
    methods = {
        "heads": sp.SplitPointRegressor(**wild, folds=0),
        "paper": sp.SplitPointRegressor.paper(**wild),
        "classifier": sp.SplitPointClassifier(**wild),
        "free": sp.SplitPointClassifier.paper(**wild),
    }
    for what, method in methods.items():
        numbers = isinstance(method, sp.SplitPointRegressor)
        data = DATA["regression" if numbers else "classification"]
        yield Case(f"train {what} rate", partial(method.fit, network(1 if numbers else 3), data, progress=False))
    for way in ("fit_stagewise", "fit_jointly"):
        call = getattr(sp.SplitPointRegressor(epochs=2, folds=0), way)
        yield Case(
            f"train {way} rate",
            lambda c=call: c(network(1), (X, Y), base_epochs=9, base_learning_rate=1e20, progress=False),
        )


# Predicting


def right_mean(found: Any) -> bool:
    return bool(torch.allclose(found.mean.float(), network(1)(X), atol=1e-4))


def predict_cases() -> Iterator[Case]:
    inputs: dict[str, Any] = {
        "too few columns": X[:, :2],
        "a text": "x",
        "None": None,
        "a dict": {"a": 1},
        "a list": [1, 2, 3],
        "complex": torch.complex(X, X),
        "texts": np.array([["a"] * 3]),
        "objects": np.array([[None] * 3]),
        "no axes": torch.tensor(1.0),
    }
    for name in ("splitpoint", "softmax", "laplace", "gaussian", "conformal", "mc_dropout", "ddu"):
        task = METHODS[name].tasks[0]
        for what, given in inputs.items():
            yield Case(f"uq(x) {name} {what}", lambda n=name, t=task, g=given: fitted(n, t)(g))
        yield Case(f"uq(x) {name} two inputs", lambda n=name, t=task: fitted(n, t)(X, X))
        yield Case(f"uq(x) {name} no input", lambda n=name, t=task: fitted(n, t)())
        for what, given in {"None": None, "3": 3, "[]": [], "rows": X[:0], "iter": iter([])}.items():
            yield Case(f"predict {name} {what}", lambda n=name, t=task, g=given: fitted(n, t).predict(g))
    regressor = partial(fitted, "splitpoint", "regression")
    yield Case("uq(x) splitpoint sparse", lambda: regressor()(X.to_sparse()))
    for what, given in {"float64": X.double(), "float16": X.half().float(), "NumPy": X.numpy()}.items():
        yield Case(f"uq(x) {what}", lambda g=given: regressor()(g), lambda found: found.mean.shape == (ROWS, 1))
    yield Case("predict float64", lambda: regressor().predict(X.double()), right_mean)
    yield Case("predict NumPy float64", lambda: regressor().predict(X.double().numpy()), right_mean)
    yield Case("predict big-endian", lambda: regressor().predict(X.numpy().astype(">f8")), right_mean)
    whole = torch.arange(12).reshape(4, 3)
    same = partial(torch.allclose, network(1)(whole.float()))
    yield Case("uq(x) whole numbers", lambda: regressor()(whole), lambda found: same(found.mean))
    yield Case("uq(x) bytes", lambda: regressor()(whole.byte()), lambda found: same(found.mean))
    yield Case("predict NaN inputs", lambda: regressor()(X * NAN), lambda found: not found.mean.isfinite().any())
    for what, call in {
        "quantile text": lambda: regressor().set_threshold((X, Y), quantile="x"),
        "quantile 2": lambda: regressor().set_threshold((X, Y), quantile=2),
        "quantile nan": lambda: regressor().set_threshold((X, Y), quantile=NAN),
        "no data": lambda: regressor().set_threshold([]),
        "None": lambda: regressor().set_threshold(None),
        "another task": lambda: regressor().set_threshold(predicted("classification")),
    }.items():
        yield Case(f"set_threshold {what}", call)
    rows = {
        "no features": (X[:0], Y[:0]),
        "lengths": (X, Y),
        "None": (None, None),
        "texts": ("a", "b"),
        "ragged": ([[1], [1, 2]], [1, 2]),
        "widths": (drawn(3, 4, 2), Y[:4]),
        "complex": (torch.complex(X, X), Y),
    }
    for what, (features, outputs) in rows.items():
        yield Case(f"predict_rows {what}", lambda f=features, o=outputs: regressor().predict_rows(f, o))
        yield Case(
            f"Recording.of {what}",
            lambda f=features, o=outputs: sp.SplitPointRegressor(epochs=1).fit_rows(
                sp.Recording.of(sp.Regression(), f, o, o if isinstance(o, str) else None), progress=False
            ),
        )
    for level in (0.5, "x", None, NAN, 2):
        yield Case(f"interval {level!r}", lambda v=level: predicted("regression").interval(v))
        yield Case(f"sets {level!r}", lambda v=level: predicted("classification").sets(v if v != 0.5 else 1.0))
    yield Case("sets method", lambda: predicted("classification").sets(0.5, "topk"))
    yield Case("flagged without a threshold", lambda: predicted("classification").flagged)
    yield Case("image of rows", lambda: predicted("regression").image)


# Metrics


def bad_targets(task: str) -> dict[str, Any]:
    wrong: dict[str, Any] = {
        "None": None,
        "a text": "abc",
        "texts": ["a"] * ROWS,
        "ragged": [[1], [1, 2]],
        "shape": torch.zeros(ROWS, 5, 2),
        "length": torch.zeros(7),
        "complex": torch.zeros(ROWS, dtype=torch.complex64),
        "a dict": {"a": 1},
        "objects": np.array([object()] * ROWS),
    }
    return wrong | (
        {"classes": torch.full((ROWS,), 9), "fractions": torch.full((ROWS,), 0.5)} if task != "regression" else {}
    )


REGRESSION = (
    "mae",
    "rmse",
    "picp",
    "picp_up",
    "picp_down",
    "piece",
    "piece_authors",
    "piece_plus",
    "piece_minus",
    "piece_floor_plus",
    "piece_floor_minus",
    "mpiw",
    "winkler",
    "pinball",
    "crps",
    "spearman_epistemic",
    "spearman_total",
    "ause",
    "sparsification",
)
CLASSES = (
    "accuracy",
    "nll",
    "brier",
    "ece",
    "adaptive_ece",
    "classwise_ece",
    "ece_floor",
    "reliability",
    "set_coverage",
)
PROBS = torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8], [0.6, 0.3, 0.1]])
TRUE = torch.tensor([0, 1, 2, 1])


def metric_cases() -> Iterator[Case]:
    for name in REGRESSION:
        own = getattr(sp.metrics, name)
        source = "gaussian" if name == "crps" else "splitpoint"
        for what, target in bad_targets("regression").items():
            yield Case(f"{name} target {what}", lambda m=own, s=source, t=target: m(fitted(s, "regression")(X), t))
        for what, wrong in {
            "None": None,
            "a tensor": Y,
            "a list": [1.0],
            "classes": predicted("classification"),
        }.items():
            yield Case(f"{name} prediction {what}", lambda m=own, p=wrong: m(p, Y))
        both = [Y[:, 0].tolist(), Y.numpy(), np.ma.masked_array(Y.numpy(), Y.numpy() > 1), Y.double()]
        for number, target in enumerate(both):
            yield Case(
                f"{name} target as given {number}",
                lambda m=own, s=source, t=target: (
                    m(fitted(s, "regression")(X), t),
                    m(fitted(s, "regression")(X), as_nan(t)),
                ),
                lambda found: same_numbers(*found),
            )
    for name in REGRESSION[2:15]:
        if name not in ("piece_authors", "crps"):
            for level in ("x", NAN, 3):
                own = getattr(sp.metrics, name)
                yield Case(f"{name} level={level!r}", lambda m=own, v=level: m(predicted("regression"), Y, level=v))
    for name in CLASSES:
        own = getattr(sp.metrics, name)
        for what, label in bad_targets("classification").items():
            yield Case(f"{name} label {what}", lambda m=own, t=label: m(predicted("classification"), t))
        for what, wrong in {
            "None": None,
            "a row": PROBS[0],
            "no classes": PROBS[:, :0],
            "NaN": PROBS * NAN,
            "a text": "abc",
            "numbers": predicted("regression"),
            "complex": PROBS + 1j,
            "texts": [["a", "b"]] * 4,
        }.items():
            yield Case(f"{name} probs {what}", lambda m=own, p=wrong: m(p, TRUE))
        if name not in ("accuracy", "set_coverage"):
            for what, wrong in {"logits": 5 * PROBS, "sums": PROBS / 2, "signs": PROBS - 0.5}.items():
                yield Case(f"{name} probs {what}", lambda m=own, p=wrong: m(p, TRUE))
        if name != "set_coverage":
            for number, (probs, label) in enumerate([(PROBS.tolist(), TRUE.tolist()), (PROBS.numpy(), TRUE.numpy())]):
                yield Case(
                    f"{name} as given {number}",
                    lambda m=own, p=probs, t=label: (m(p, t), m(PROBS, TRUE)),
                    lambda found: same_numbers(*found),
                )
    for name in ("ece", "adaptive_ece", "classwise_ece", "ece_floor", "reliability"):
        for bins in (0, -1, "x", 2.5, None, True):
            yield Case(f"{name} bins={bins!r}", lambda m=name, b=bins: getattr(sp.metrics, m)(PROBS, TRUE, b))
    low, high = [0.1, 0.2], [0.2, 0.9]
    for name in ("auroc", "aupr", "fpr95"):
        own = getattr(sp.metrics, name)
        for what, wrong in {
            "None": None,
            "a text": "x",
            "texts": ["a"],
            "complex": torch.tensor([1j]),
            "ragged": [[1], [1, 2]],
        }.items():
            yield Case(f"{name} negative {what}", lambda m=own, w=wrong: m(w, high))
            yield Case(f"{name} positive {what}", lambda m=own, w=wrong: m(low, w))
        for number, kind in enumerate((np.array, list)):
            yield Case(
                f"{name} as given {number}",
                lambda m=own, k=kind: (m(k(low), k(high)), m(torch.tensor(low), torch.tensor(high))),
                lambda found: same_numbers(*found),
            )
        yield Case(f"{name} of nothing", lambda m=own: m([], []), math.isnan)
    for name in ("spearman", "aurc", "eaurc", "risk_coverage"):
        own = getattr(sp.metrics, name)
        for what, wrong in {"None": None, "a text": "x", "length": [1.0], "texts": ["a"] * 2}.items():
            yield Case(f"{name} {what}", lambda m=own, w=wrong: m(low, w))
    yield Case(
        "spearman of lists", lambda: sp.metrics.spearman([1, 2, 3], [1, 4, 9]), lambda found: abs(found - 1) < 1e-9
    )
    for what, wrong in {"None": None, "empty": {}, "a list": [1], "texts": {"a": "x"}, "shape": {"a": [1.0]}}.items():
        yield Case(f"blamed {what}", lambda w=wrong: sp.metrics.blamed(w))
        yield Case(f"right_blame {what}", lambda w=wrong: sp.metrics.right_blame(w))
    for what, wrong in {"None": None, "empty": {}, "texts": {"a": ["x"]}}.items():
        yield Case(f"spoilt_aurocs {what}", lambda w=wrong: sp.metrics.spoilt_aurocs([0.1], w))
    for rows, level in ((-1, 0.9), (2.5, 0.9), ("x", 0.9), (5, 2), (5, "x"), (5, NAN)):
        yield Case(f"piece_floor {rows!r} {level!r}", lambda r=rows, v=level: sp.metrics.piece_floor(r, v))
    for what, call in {
        "score": lambda: sp.metrics.ause(predicted("regression"), Y, score="x"),
        "score list": lambda: sp.metrics.ause(predicted("regression"), Y, score=["total"]),
        "error": lambda: sp.metrics.ause(predicted("regression"), Y, error=3),
        "measured": lambda: sp.metrics.measured(None),
        "row_scores": lambda: sp.metrics.row_scores("x"),
        "set_size": lambda: sp.metrics.set_size(PROBS),
    }.items():
        yield Case(f"metrics {what}", call)


def as_nan(target: Any) -> torch.Tensor:
    values = target.filled(NAN) if isinstance(target, np.ma.MaskedArray) else target
    return torch.as_tensor(values, dtype=torch.float64).reshape(ROWS, 1)


def same_numbers(one: Any, other: Any) -> bool:
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=1e-5) or (math.isnan(one) and math.isnan(other))
    pairs = ((getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__)
    return all(torch.allclose(a.double(), b.double(), equal_nan=True, atol=1e-5) for a, b in pairs)


# Layers, attacks, evaluation, modalities


def other_cases() -> Iterator[Case]:
    for what, model, given in (
        ("no model", None, (X,)),
        ("a text", "net", (X,)),
        ("no input", network(1), ()),
        ("shape", network(1), (X[:, :1],)),
        ("a text as input", network(1), ("x",)),
        ("None as input", network(1), (None,)),
    ):
        yield Case(f"layers {what}", lambda m=model, g=given: sp.layers(m, *g))
    for what, data in {"None": None, "3": 3, "no targets": X, "empty": [], "shape": (X, torch.zeros(ROWS, 4))}.items():
        yield Case(f"evaluate {what}", lambda d=data: sp.evaluate(fitted("splitpoint", "regression"), d))
    for what, uq in {"None": None, "a model": network(1), "settings": sp.SplitPointRegressor()}.items():
        yield Case(f"evaluate predictor {what}", lambda u=uq: sp.evaluate(u, (X, Y)))
    pair = {"image": "image", "text": "text"}
    data = (X, X[:, :2], LABEL)
    hole = (X * NAN, X[:, :2], LABEL)
    for what, branches, given in (
        ("NaN inputs", pair, hole),
        ("unknown layer", {"a": "nope", "b": "text"}, data),
        ("one layer twice", {"a": "text", "b": "text"}, data),
        ("no labels", pair, (X, X[:, :2], torch.full((ROWS,), -100))),
        ("labels", pair, (X, X[:, :2], LABEL + 7)),
        ("one input", pair, (X, LABEL)),
        ("None", pair, None),
        ("empty", pair, []),
        ("complex targets", pair, (X, X[:, :2], LABEL + 1j)),
    ):
        yield Case(
            f"Agreement {what}",
            lambda b=branches, g=given: sp.Agreement(branches=b).fit(Two().eval(), g, progress=False),
        )
    yield Case("Agreement no model", lambda: sp.Agreement(branches=pair).fit("net", data, progress=False))
    tokens = torch.arange(ROWS * 2).reshape(ROWS, 2) % 9
    mixed = Mixed().eval()
    expected = mixed(X, tokens)
    method = sp.SplitPointRegressor(epochs=1, folds=0)
    for what, given in {
        "float64 beside tokens": (X.double(), tokens),
        "tokens as int32": (X, tokens.int()),
        "NumPy": (X.numpy(), tokens.numpy()),
    }.items():
        yield Case(
            f"fit {what}",
            lambda g=given: method.fit(mixed, (*g, Y), progress=False)(*g),
            lambda found: torch.allclose(found.mean, expected, atol=1e-5),
        )
    small = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).eval().bfloat16()
    yield Case(
        "fit bfloat16 on float32",
        lambda: method.fit(small, (X, Y), progress=False)(X),
        lambda found: torch.allclose(found.mean.float(), small(X.bfloat16()).float(), atol=1e-2),
    )
    images = (255 * torch.rand(ROWS, 1, 6, 6, generator=torch.Generator().manual_seed(0))).byte()
    seeing = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 1)).eval()
    yield Case(
        "fit bytes of images",
        lambda: method.fit(seeing, (images, Y), progress=False)(images),
        lambda found: torch.allclose(found.mean, seeing(images.float()), atol=1e-3),
    )
    words = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 1)).eval()
    yield Case(
        "fit tokens",
        lambda: method.fit(words, (tokens, Y), progress=False)(tokens),
        lambda found: torch.allclose(found.mean, words(tokens), atol=1e-5),
    )
    yield Case("fit tokens as floats", lambda: method.fit(words, (tokens.float(), Y), progress=False))


# The command line


def told(*arguments: str) -> SimpleNamespace:
    """Exit code and what the command says on standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: Any = main(list(arguments))
        except SystemExit as stop:
            code = stop.code
    return SimpleNamespace(code=code, err=err.getvalue())


def one_line(found: SimpleNamespace) -> bool:
    last = found.err.strip().splitlines()[-1]
    return found.code not in (0, None) and "Traceback" not in found.err and last.startswith("splitpoint")


def command_cases() -> Iterator[Case]:
    for arguments in (
        (),
        ("nope",),
        ("data",),
        ("data", "check", "nope"),
        ("data", "download", "nope"),
        ("data", "list", "nope"),
        ("layers",),
        ("layers", "nope"),
        ("layers", "nope:net"),
        ("layers", "os:getcwd"),
        ("layers", "torch:nope"),
        ("report", "/nowhere"),
        ("bench",),
        ("bench", "nope"),
        ("bench", "uci", "--trials", "x"),
        ("bench", "uci", "--methods", "nope"),
        ("bench", "uci", "--nope"),
        ("methods", "nope"),
        ("demo", "--seed", "x"),
    ):
        yield Case(f"splitpoint {' '.join(arguments)}", partial(told, *arguments), one_line)


PARTS = (
    settings_cases,
    data_cases,
    training_cases,
    predict_cases,
    metric_cases,
    other_cases,
    command_cases,
)


def corpus() -> list[Case]:
    """All cases; names tell them apart."""
    return [case for part in PARTS for case in part()]
