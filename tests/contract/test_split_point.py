"""What the split-point methods promise beyond every other: the equations behind their fields."""

import pytest
import torch

import splitpoint as sp
from problems import METHODS, assert_same, base, fit, fitted, method, only, problem
from splitpoint import likeness

SPLIT_POINT = [name for name in METHODS if name.startswith("splitpoint")]
CLASSES = {"regression": sp.SplitPointRegressor, "classification": sp.SplitPointClassifier}


@only(SPLIT_POINT, ["scalar", "pair", "maps", "classes", "label_maps"])
def test_the_table_makes_the_classes(name, own):
    uq = fitted(name, own)
    assert type(uq.method) is CLASSES[problem(own).task]
    assert (uq.method.learning_rate == 1e-4) == ("paper" in name)


@only(SPLIT_POINT, ["scalar", "pair", "maps", "classes", "label_maps"])
def test_scores_are_not_negative(name, own):
    out = fitted(name, own)(problem(own).fresh)
    assert (out.epistemic >= 0).all()
    assert (out.total >= 0).all()


@only(SPLIT_POINT, ["scalar", "pair", "maps"])
def test_intervals_lie_around_the_prediction(name, own):
    out = fitted(name, own)(problem(own).fresh)
    assert (out.lower < out.mean).all()
    assert (out.mean < out.upper).all()


@only(SPLIT_POINT, ["scalar", "pair", "maps"])
def test_regression_scores_are_the_equations_of_the_reported_mars(name, own):
    x = problem(own).fresh
    out = fitted(name, own)(torch.cat([x, 10 * x]))
    z, up, down = out.mar.double(), out.mar_up.double(), out.mar_down.double()
    size = torch.maximum(z, torch.maximum(up, down)).square()
    assert ((out.sds - (2 * up * down - z * (up + down)).abs()).abs() <= 1e-6 * size).all()
    if "paper" in name:
        assert torch.equal(out.epistemic, out.sds)
        assert torch.equal(out.support, out.sds)
        assert torch.equal(out.total, out.mar_up + out.mar_down + out.epistemic.sqrt())
    else:
        grown = 1 + out.epistemic.double() / (2 * up * down)
        sizes = out.aleatoric.double() + up + down
        torch.testing.assert_close(out.total.double(), sizes * grown, rtol=1e-3, atol=1e-6)
        if not fitted(name, own).tap.context:  # else support is of other layers too
            assert (grown.square() >= 1 + out.support.double() * (1 - 1e-3)).all()


@only(["splitpoint", "splitpoint_paper", "splitpoint_layers"], ["scalar", "pair", "maps"])
def test_the_aleatoric_score_is_the_width_of_an_uncalibrated_interval(name, own):
    x = problem(own).fresh
    out = fitted(name, own)(torch.cat([x, 10 * x]))
    width = (out.upper.double() - out.lower.double()).float()
    torch.testing.assert_close(out.aleatoric, width, rtol=1e-4, atol=1e-4)


@only(SPLIT_POINT, ["classes", "label_maps"])
def test_classification_scores_are_the_equations_of_the_reported_mars(name, own):
    x = problem(own).fresh
    out = fitted(name, own)(torch.cat([x, 10 * x]))
    p = out.base_probs.double()
    expected = (2 * p * (1 - p) - out.mar).abs().sum(1)
    torch.testing.assert_close(out.sds.double(), expected, rtol=1e-5, atol=2e-6)
    if "paper" in name:
        assert torch.equal(out.epistemic, out.sds)
        torch.testing.assert_close(out.total, out.mar.sum(1) + out.epistemic, rtol=1e-5, atol=1e-6)
    assert torch.equal(out.epistemic, out.support)
    entropy = torch.distributions.Categorical(probs=out.probs.movedim(1, -1)).entropy()
    torch.testing.assert_close(out.aleatoric, entropy, rtol=1e-4, atol=1e-5)


@only(SPLIT_POINT, ["scalar"])
def test_any_fitted_level_can_be_asked_for_and_no_other(name, own):
    out = fit(name, own, confidence_level=(0.5, 0.8, 0.9))(problem(own).fresh)
    widths = []
    for place, level in enumerate((0.5, 0.8, 0.9)):
        lower, upper = out.interval(level)
        assert torch.equal(lower, out.lowers[..., place])
        assert torch.equal(upper, out.uppers[..., place])
        widths.append(upper - lower)
    assert (widths[0] < widths[1]).all()
    assert (widths[1] < widths[2]).all()
    with pytest.raises(sp.SettingsError, match=r"Expected one of the fitted confidence levels .* got 0\.7; fit with"):
        out.interval(0.7)


@pytest.mark.parametrize("own", ["scalar", "classes"])
def test_a_class_asks_the_model_once_about_a_row_in_fit_too(own):
    """Once more, row by row, on a sample, where a fit asks whether the network memorised its rows.

    The fingerprint of the network asks twice about rows that are made up.
    """
    given, rows = problem(own), []

    def count(_module, inputs, _output):
        rows.append(len(inputs[0]) if len(inputs[0]) > 1 else 0)

    hook = base(own)[0].register_forward_hook(count)
    try:
        CLASSES[given.task](epochs=1).fit(base(own), given.data, progress=False)
    finally:
        hook.remove()
    assert sum(rows) == len(given.data[0]) + 2 * likeness.ROWS


@pytest.mark.parametrize("own", ["scalar", "classes"])
def test_a_stream_that_can_be_read_once_is_enough_for_a_class(own):
    given, kind = problem(own), CLASSES[problem(own).task](epochs=2)
    x, y = given.data
    uq = kind.fit(base(own), ((x[i : i + 50], y[i : i + 50]) for i in range(0, len(x), 50)), progress=False)
    assert_same(uq(given.fresh), kind.fit(base(own), (x, y), progress=False)(given.fresh), rtol=1e-3, atol=1e-3)


def test_a_setting_of_the_other_task_is_refused():
    for own, setting in (("scalar", {"mars": "free"}), ("classes", {"folds": 0})):
        with pytest.raises(sp.SettingsError, match=f"but got {next(iter(setting))}"):
            method("splitpoint", problem(own), **setting).fit(base(own), problem(own).data, progress=False)
