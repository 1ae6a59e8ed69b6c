"""The page says what the verdict says, needs nothing from elsewhere, and lets no name become markup."""

import base64
import json
import re

import pytest

import splitpoint as sp
from problems import drawn, fitted, problem


@pytest.fixture
def page(numbers_verdict, tmp_path):
    numbers_verdict.save(tmp_path / "verdict.html")
    return (tmp_path / "verdict.html").read_text(encoding="utf-8")


def test_it_stands_alone(page):
    assert page.startswith("<!doctype html>")
    assert re.findall(r"<script|<iframe|<object|@import|url\(", page) == []
    assert [
        found for found in re.findall(r'(?:src|href)="([^"]*)"', page) if not found.startswith(("#", "data:"))
    ] == []
    assert "$" not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)


def test_it_says_what_the_verdict_says(page, numbers_verdict):
    text = re.sub(r"<[^>]+>", "", page)
    for one in numbers_verdict.findings:
        assert one.statement.replace("`", "").replace("'", "&#x27;") in text, one.name
    assert text.count(numbers_verdict.headline) == 1
    for judged in numbers_verdict.parts:
        assert f'id="{judged.part.name}"' in page


def test_links_lead_somewhere(page):
    assert {found[1:] for found in re.findall(r'href="(#[^"]*)"', page)} <= set(re.findall(r'id="([^"]*)"', page))


def test_rows_that_were_trained_on_are_the_first_reason(numbers_verdict):
    assert numbers_verdict.light == "red"
    assert "128 test rows are training rows" not in numbers_verdict.reasons[0]
    assert any(reason.startswith("Share of test rows that are training rows too") for reason in numbers_verdict.reasons)
    assert str(numbers_verdict).startswith("RED: Do not rely on")


def test_images_are_shown_and_names_are_escaped(images_verdict, tmp_path):
    images_verdict.save(tmp_path / "verdict.html")
    page = (tmp_path / "verdict.html").read_text(encoding="utf-8")
    assert "<b>" not in page
    assert "Pixels&lt;b&gt;&amp;&lt;/b&gt;" in page
    images = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert len(images) == 12
    assert all(base64.b64decode(image).startswith(b"\x89PNG") for image in images)


def test_worst_rows_are_the_least_likely_ones(images_verdict):
    table = images_verdict.to_dict()["parts"]["worst"]["tables"]["worst"]
    place = table["head"].index("p of the label")
    likelihoods = [float(row[place]) for row in table["rows"]]
    assert likelihoods == sorted(likelihoods)
    assert len({row[0] for row in table["rows"]}) == 12


def test_json_has_stable_names(numbers_verdict, images_verdict):
    for found, parts in (
        (numbers_verdict, {"coverage", "width", "ranking", "flags", "ood", "rows", "cost", "worst"}),
        (images_verdict, {"probabilities", "sets", "ranking", "ood", "rows", "cost", "worst"}),
    ):
        said = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert said["parts"].keys() == parts
        assert {"format", "light", "headline", "reasons", "figures", "identity", "findings"} < said.keys()
        assert {"name", "light", "statement", "advice", "value", "low", "high", "promise"} < said["findings"][0].keys()
    assert {
        "coverage",
        "width_ratio",
        "winkler",
        "flag_rate",
        "auroc_ood",
        "cost_ratio",
    } <= numbers_verdict.figures.keys()
    assert {
        "ece",
        "ece_floor",
        "auroc_error",
        "auroc_ood",
        "auroc_ood_energy",
        "set_coverage",
    } <= images_verdict.figures.keys()


def test_what_is_judged_is_named(numbers_verdict):
    known = numbers_verdict.identity
    assert known["model"] == "Sequential"
    assert known["data"] == "128 test rows, 128 train rows, 128 calibration rows, 12 out-of-distribution rows"
    assert "confidence_level=(0.5, 0.95)" in known["settings"]
    assert {"parameters", "digest", "layer", "versions"} <= known.keys()


def test_a_page_needs_a_place(numbers_verdict, tmp_path):
    with pytest.raises(sp.StorageError, match="Expected a file to write"):
        numbers_verdict.save(tmp_path)
    with pytest.raises(sp.StorageError, match="in a folder that exists"):
        numbers_verdict.save(tmp_path / "none" / "verdict.html")


def test_without_sets_flags_and_strange_rows_their_parts_are_missing():
    found = sp.verdict(fitted("energy", "classes"), problem("classes").calibration, cost=False)
    assert found.to_dict()["parts"].keys() == {"probabilities", "ranking", "rows", "worst"}


def test_a_method_without_a_base_model_has_no_cost():
    found = sp.verdict(fitted("deep_ensemble", "scalar"), problem("scalar").calibration)
    assert "no base model" in next(one.statement for one in found.findings if one.name == "cost_ratio")


def test_figures_of_several_outputs_do_not_depend_on_their_units():
    """Outputs that are measured in other units give the same page: ratios, ranks and shares have none."""
    uq, task = fitted("splitpoint", "pair"), problem("pair")
    x, y = task.calibration

    def scaled(factor):
        from dataclasses import fields, replace

        answer = type(uq).forward

        def forward(*args):
            out = answer(uq, *args)
            names = [
                one.name for one in fields(out) if one.name in ("mean", "aleatoric", "epistemic", "total", "support")
            ]
            changed = {name: getattr(out, name) * factor for name in names}
            return replace(out, **changed, lowers=out.lowers * factor[:, None], uppers=out.uppers * factor[:, None])

        uq.forward = forward
        try:
            return sp.verdict(uq, (x, y * factor), cost=False)
        finally:
            del uq.forward

    import torch

    one, other = scaled(torch.tensor([1.0, 1.0])), scaled(torch.tensor([1.0, 1000.0]))
    for name in ("coverage", "width_ratio", "winkler_ratio", "saved_total"):
        assert other.figures[name] == pytest.approx(one.figures[name], rel=1e-4), name
    assert drawn(0, 1).numel() == 1
