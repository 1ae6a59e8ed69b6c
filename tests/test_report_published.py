"""Published figures: as printed in the paper, under the names of the records."""

import math
from collections import Counter

import pytest

from splitpoint.report.published import figures, find, normalised, obstacle


def test_every_table_is_whole():
    tables = Counter(figure.table for figure in figures().values())
    assert tables == {
        "tab:UCI-results1": 360,
        "tab:UCI-results2": 360,
        "tab:UCI-results3": 360,
        "tab:cubic-results": 40,
        "tab:training-reg-as": 216,
        "tab:model-reg-as": 90,
    }


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (("boston", "clean", "mc_dropout", "", "rmse"), "3.99 ± 0.17"),
        (("power", "log_normal", "mc_dropout", "", "rmse"), "4.83 ± 0.03"),
        (("concrete", "clean", "splitpoint", "", "rmse"), "7.09 ± 0.14"),
        (("naval", "clean", "splitpoint", "", "spearman_total"), "0.58 ± 0.02"),
        (("naval", "clean", "splitpoint", "hidden_layers=1", "spearman_total"), "0.70 ± 0.01"),
        (("concrete", "clean", "splitpoint", "train_fraction=0.2", "rmse"), "7.13 ± 0.13"),
        (("cubic", "gaussian", "evidential_regression", "", "piece_authors"), "0.01"),
    ],
)
def test_figures_are_those_of_the_paper(key, text):
    assert find(*key).text == text


def test_parts_of_a_figure():
    found = find("boston", "clean", "mc_dropout", "", "rmse")
    assert (found.mean, found.stderr, found.unit, found.table) == (3.99, 0.17, 0.01, "tab:UCI-results1")
    assert math.isnan(find("cubic", "trimodal", "deep_ensemble", "", "rmse").stderr)


def test_names_of_the_records_are_used():
    metrics = {key[-1] for key in figures()}
    assert metrics == {"rmse", "winkler", "piece_authors", "piece_plus", "piece_minus", "spearman_total"}
    assert find("boston", "clean", "splitpoint", "", "piece") is None
    assert find("boston", "clean", "splitpoint_calibrated", "", "winkler") is not None


def test_variants_are_found_however_they_are_written():
    key = ("concrete", "clean", "splitpoint")
    usual = find(*key, "train_fraction=1.0", "winkler")
    assert find(*key, "training=stagewise", "winkler") is usual
    assert find(*key, "train_fraction=1.0;training=stagewise", "winkler") is usual
    assert find(*key, "training=joint", "winkler") is not usual
    assert normalised("") == ""
    assert normalised(" b=2; a=1 ") == "a=1;b=2"


def test_obstacles_to_a_comparison():
    assert "noise" in obstacle("paper", "trimodal", "boston")
    assert "second target" in obstacle("paper", "clean", "energy")
    assert obstacle("authors", "trimodal", "energy") == ""
    assert obstacle("paper", "trimodal", "cubic") == ""
    assert obstacle("paper", "clean", "boston") == ""
