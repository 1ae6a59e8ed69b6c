"""What ids are called on a page, and the order in which they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

METHODS = {
    "mc_dropout": "MC dropout",
    "deep_ensemble": "Deep ensemble",
    "evidential_regression": "Evidential regression",
    "evidential_quantile": "Evidential quantiles",
    "sqr_oc": "SQR-OC",
    "gaussian": "Gaussian",
    "laplace": "Laplace",
    "conformal": "Conformal",
    "splitpoint": "Split-point (paper)",
    "splitpoint_calibrated": "Split-point calibrated (paper)",
    "splitpoint_default": "Split-point (ours)",
    "splitpoint_conformal": "Split-point conformal (ours)",
}
"""Methods in the order of the tables: rivals, then the paper's recipe, then ours."""

SUITES = {"uci": "UCI regression", "cubic": "Cubic regression", "uci-ablation": "UCI ablations"}
NOISES = {
    "clean": "no added noise",
    "log_normal": "log-normal noise",
    "trimodal": "trimodal noise",
    "gaussian": "Gaussian noise",
}
PROTOCOLS = {"authors": "authors' protocol", "paper": "paper's protocol"}


def title(name: str, titles: Mapping[str, str] = METHODS) -> str:
    """The title of an id; one that is not known speaks for itself.

    >>> title("sqr_oc"), title("my_method")
    ('SQR-OC', 'my method')
    """
    return titles.get(name, name.replace("_", " "))


def ordered(names: Iterable[str], titles: Mapping[str, str] = METHODS) -> tuple[str, ...]:
    """Ids in their order on the page, each once: known ones first, then numbers by size, then the alphabet.

    >>> ordered(["wine", "splitpoint", "boston", "mc_dropout", "wine"])
    ('mc_dropout', 'splitpoint', 'boston', 'wine')
    >>> ordered(["10", "9", "0.5"])
    ('0.5', '9', '10')
    """
    places = {name: place for place, name in enumerate(titles)}

    def key(name: str) -> tuple[int, float, str]:
        number = as_number(name)
        return places.get(name, len(places)), float("inf") if number is None else number, name

    return tuple(sorted(set(names), key=key))


def as_number(text: str) -> float | None:
    """The number that a text is, if it is a finite one."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None
