"""The tables in the documentation are those of the committed records, and their counts are right."""

import importlib.util
from pathlib import Path

import pytest

from splitpoint.report.sections import sections

ROOT = Path(__file__).parents[1]
METHODS = {"splitpoint": (2.0, 3.0), "splitpoint_paper": (4.0, 1.0), "deep_ensemble": (1.0, 5.0)}


@pytest.fixture(scope="module")
def summary():
    spec = importlib.util.spec_from_file_location("summary", ROOT / "benchmarks" / "summary.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_documented_tables_are_those_of_the_records(summary):
    assert any(summary.RESULTS.iterdir())
    for page, text in summary.pages().items():
        assert page.read_text(encoding="utf-8") == text, "run: python benchmarks/summary.py --write"


def test_a_duel_counts_the_data_sets_where_ours_is_better(summary, cell):
    records = [
        record
        for method, scores in METHODS.items()
        for dataset, score in zip(("boston", "yacht"), scores, strict=True)
        for record in cell(dataset, method, {"winkler": [score, score + 1]}, protocol="paper")
    ]
    lines = list(summary.duels(sections(records)[0], "winkler", ("splitpoint_paper", "deep_ensemble")))
    assert "| boston | 2.50 ± 0.50 | 4.50 ± 0.50 | 1.50 ± 0.50 |" in lines
    assert lines[-2] == ("Ours is better on 1 of 2 against Split-point (paper), and on 1 of 2 against Deep ensemble.")


def test_a_failed_trial_loses_the_duel(summary, cell):
    records = [
        *cell("boston", "splitpoint", {"winkler": [1.0, 1.0]}, protocol="paper", errors=(1,)),
        *cell("boston", "splitpoint_paper", {"winkler": [9.0, 9.0]}, protocol="paper"),
    ]
    lines = list(summary.duels(sections(records)[0], "winkler", ("splitpoint_paper",)))
    assert lines[-2] == "Ours is better on 0 of 1 against Split-point (paper)."


def test_lines_replace_what_was_between_the_marks(summary):
    page = "a\n<!-- begin: x -->\nold\n<!-- end: x -->\nb\n"
    assert summary.placed(page, "x", ["new"]) == "a\n<!-- begin: x -->\n\nnew\n\n<!-- end: x -->\nb\n"
    with pytest.raises(SystemExit, match="no such lines"):
        summary.placed("a", "x", [])


def test_chance_of_perfect_bounds_is_that_of_the_normal_law(summary):
    # one trial: P(|Z| sqrt(pi / 2) <= 1.2) = P(|Z| <= 0.9575) = 0.6617, for each of two sides
    assert summary.chance(1.2, 1, 1.0) == pytest.approx(0.6617**2, abs=0.005)
    # a hundred trials: the mean has deviation 0.0756, so that 1.2 lies 2.65 deviations above 1, and 5.3 below 2
    assert summary.chance(1.2, 100, 1.0) == pytest.approx(0.996**2, abs=0.005)
    assert summary.chance(1.2, 100, 2.0) == pytest.approx(0.0, abs=1e-6)


RIVALS = {"auroc_error_entropy": 0.90, "auroc_adversarial_entropy": 0.60, "auroc_ood_entropy": 0.80}
OURS = {"ece": (0.02, 0.04), "auroc_error": (0.91, 0.895), "auroc_adversarial": (0.5, 0.6), "auroc_ood": (0.81, 0.79)}


def of_images(cell, failed=()):
    softmax = {"ece": 0.05, "accuracy": 0.9, "auroc_ood": 0.8} | RIVALS
    temperature = {"ece": 0.03}
    for place, (dataset, network) in enumerate((("mnist", "lenet"), ("cifar10", "vgg16"))):
        ours = {"accuracy": 0.9025 - 0.002 * place, "ece_floor": 0.01} | {
            name: values[place] for name, values in OURS.items()
        }
        parts = {"softmax": softmax, "energy": softmax, "ddu": softmax, "temperature_scaling": temperature}
        parts |= {"splitpoint_conformal": ours, "splitpoint_layers": ours}
        for method, values in parts.items():
            errors = failed if (method, place) == ("splitpoint_conformal", 1) else ()
            metrics = {name: [value, value] for name, value in values.items()}
            changes = {"suite": "images", "protocol": "short", "errors": errors, "network": network}
            yield from cell(dataset, method, metrics, **changes)


def test_images_count_where_ours_is_ahead_of_temperature_and_entropy(summary, cell):
    (section,) = sections(list(of_images(cell)))
    lines = list(summary.beside_softmax(section))
    assert "| MNIST, LeNet | 0.0500 ± 0.0000 | 0.0300 ± 0.0000 | 0.0200 ± 0.0000 | 0.0100 ± 0.0000 |" in lines
    assert lines[-6:-1] == [
        "- ECE: below that of temperature scaling on 1 of 2.",
        "- Accuracy: within 0.2 points of the network's on 1 of 2 (+0.25, +0.05).",
        "- Errors: ahead of entropy on 1 of 2, at most 0.01 behind on 2 of 2.",
        "- Adversarial: ahead of entropy on 0 of 2.",
        "- Out of distribution: ahead of entropy on 1 of 2.",
    ]


def test_images_with_a_failed_trial_are_ahead_of_nothing(summary, cell):
    (section,) = sections(list(of_images(cell, failed=(1,))))
    assert list(summary.beside_softmax(section))[-4] == (
        "- Errors: ahead of entropy on 1 of 2, at most 0.01 behind on 1 of 2."
    )
