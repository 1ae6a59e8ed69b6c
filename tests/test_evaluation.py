"""One call against the metrics one by one: names, missing targets, maps, devices, and each row passing once."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import splitpoint as sp
from splitpoint import metrics
from splitpoint.conformal import Conformity
from splitpoint.errors import DataError
from splitpoint.prediction import ClassificationPrediction, RegressionPrediction

REGRESSION = {
    "rmse", "mae", "picp", "picp_up", "picp_down", "mpiw", "winkler", "piece", "piece_authors", "piece_plus",
    "piece_minus", "piece_floor_plus", "piece_floor_minus", "pinball", "spearman_epistemic", "spearman_total", "ause",
}  # fmt: skip
CLASSIFICATION = {"accuracy", "nll", "brier", "ece", "ece_floor", "adaptive_ece", "classwise_ece"}
DETECTED = {"auroc_{}", "aupr_{}", "fpr95_{}"}
ERRORS = {"auroc_error", "aupr_error", "fpr95_error", "auroc_error_epistemic", "auroc_error_entropy", "aurc"}


@pytest.fixture(scope="module")
def regression():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 2, generator=generator)
    y = x.sum(1, keepdim=True) + 0.3 * torch.randn(300, 1, generator=generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
    method = sp.SplitPointRegressor(confidence_level=(0.5, 0.9), epochs=5, folds=1, rows_per_call=64)
    return method.fit(net, (x[:200], y[:200]), progress=False), x[200:], y[200:]


@pytest.fixture(scope="module")
def classification():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 2, generator=generator)
    label = torch.randint(3, (400,), generator=generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))
    method = sp.SplitPointClassifier(epochs=5, ignore_index=255, rows_per_call=64)
    return method.fit(net, (x[:250], label[:250]), progress=False), x[250:], label[250:]


class Scripted:
    """A predictor that gives the predictions it is made of, batch after batch."""

    def __init__(self, *batches, others=(), ignore_index=None):
        self.batches, self.others = batches, others
        self.method = SimpleNamespace() if ignore_index is None else SimpleNamespace(ignore_index=ignore_index)

    def labelled(self, data, progress):
        return iter(self.batches)

    def stream(self, data, progress):
        return iter(self.others)


def regression_of(score, scale=None):
    zero, bound = torch.zeros_like(score), torch.ones_like(score)[..., None]
    return RegressionPrediction(score, score, score, None, zero, (0.9,), -bound, bound, scale=scale)


def classes_of(probs, score, axis=1, sets=None):
    label = probs.argmax(axis)
    return ClassificationPrediction(-score, score, score, None, probs, probs, label, mar=probs, conformity=sets)


# Regression


def test_regression_figures_are_those_of_the_metrics(regression):
    uq, x, y = regression
    figures, out = sp.evaluate(uq, (x, y)), uq.predict(x)
    assert set(figures) == {*REGRESSION, "level", "rows"}
    assert figures["level"] == 0.9
    assert figures["rows"] == 100
    for name in REGRESSION:
        assert figures[name] == pytest.approx(getattr(metrics, name)(out, y)), name
    assert all(isinstance(value, float) for value in figures.values())


def test_missing_targets_do_not_count(regression):
    uq, x, y = regression
    holes = y.clone()
    holes[::3] = math.nan
    seen = ~holes.isnan().flatten()
    figures, expected = sp.evaluate(uq, (x, holes)), sp.evaluate(uq, (x[seen], y[seen]))
    assert figures.pop("rows") == 100
    assert expected.pop("rows") == float(seen.sum())
    assert figures == pytest.approx(expected)


@pytest.mark.parametrize("form", ["loader", "dict", "numpy", "flat"])
def test_any_form_of_data_will_do(regression, form):
    uq, x, y = regression
    data = {
        "loader": DataLoader(TensorDataset(x, y), batch_size=37),
        "dict": {"input": x, "labels": y},
        "numpy": (x.numpy(), y.numpy()),
        "flat": (x, y.flatten()),
    }[form]
    assert sp.evaluate(uq, data) == pytest.approx(sp.evaluate(uq, (x, y)), rel=1e-5)


def test_other_inputs_are_found_by_the_support_score(regression):
    uq, x, y = regression
    far, near = 20 + 5 * x, 3 * x
    figures = sp.evaluate(uq, (x, y), ood=(far, y), adversarial=near)
    clean = uq.predict(x).support
    for suffix, others in (("ood", far), ("adversarial", near)):
        score = uq.predict(others).support
        for name in ("auroc", "aupr", "fpr95"):
            assert figures[f"{name}_{suffix}"] == pytest.approx(getattr(metrics, name)(clean, score))
    assert "auroc_ood_entropy" not in figures


def test_a_metric_that_is_added_to_the_table_is_given(regression, monkeypatch):
    uq, x, y = regression
    entry = metrics.Metric("hits", lambda evidence: float(len(evidence.target)), "Hits", "none")
    monkeypatch.setitem(metrics.METRICS, "hits", entry)
    assert sp.evaluate(uq, (x, y))["hits"] == 100


def test_a_distribution_adds_its_score():
    y = torch.tensor([0.5, -0.5, math.nan])
    score = torch.rand(3, generator=torch.Generator().manual_seed(0))
    figures = sp.evaluate(Scripted((regression_of(score, torch.ones(3)), y)), None)
    assert figures["crps"] == pytest.approx(metrics.crps(regression_of(score[:2], torch.ones(2)), y[:2]))


def test_maps_of_different_sizes_count_every_pixel_for_errors_and_every_image_for_detection():
    generator = torch.Generator().manual_seed(0)
    batches, others = [], []
    for size in (4, 6):
        score, y = torch.rand(2, 2, 1, size, size, generator=generator)
        y[0, 0, 0] = math.nan
        batches.append((regression_of(score), y))
        others.append(regression_of(score + 0.2))
    figures = sp.evaluate(Scripted(*batches, others=others), None, ood=[])
    errors = torch.cat([y[~y.isnan()] for _, y in batches])
    assert figures["mae"] == pytest.approx(float(errors.double().mean()))
    assert figures["rows"] == 4
    groups = [out for out, _ in batches], others
    means = [torch.cat([out.epistemic.flatten(1).mean(1) for out in group]) for group in groups]
    assert figures["auroc_ood"] == metrics.auroc(*means)


# Classification


def test_classification_figures_are_those_of_the_metrics(classification):
    uq, x, label = classification
    figures, out = sp.evaluate(uq, (x, label), ood=x + 9), uq.predict(x)
    expected = {*CLASSIFICATION, *ERRORS, "rows", "auroc_ood_entropy"} | {name.format("ood") for name in DETECTED}
    assert set(figures) == expected
    for name in CLASSIFICATION:
        assert figures[name] == pytest.approx(getattr(metrics, name)(out, label)), name
    wrong = out.label != label
    for name in ("auroc", "aupr", "fpr95"):
        assert figures[f"{name}_error"] == pytest.approx(getattr(metrics, name)(out.total[~wrong], out.total[wrong]))
    assert figures["auroc_error_epistemic"] == metrics.auroc(out.epistemic[~wrong], out.epistemic[wrong])
    assert figures["auroc_error_entropy"] == metrics.auroc(out.aleatoric[~wrong], out.aleatoric[wrong])
    assert figures["aurc"] == pytest.approx(metrics.aurc(out.total, wrong.double()))
    others = uq.predict(x + 9)
    assert figures["auroc_ood_entropy"] == metrics.auroc(out.aleatoric, others.aleatoric)


@pytest.mark.parametrize(("ignored", "dtype"), [(255, torch.uint8), (255, torch.long), (-100, torch.long)])
def test_the_label_that_the_method_ignores_does_not_count(classification, ignored, dtype):
    uq, x, label = classification
    holes = label.to(dtype).clone()
    holes[::3] = ignored
    seen = torch.arange(len(x)) % 3 != 0
    figures, expected = sp.evaluate(uq, (x, holes)), sp.evaluate(uq, (x[seen], label[seen]))
    figures.pop("rows")
    expected.pop("rows")
    assert figures == pytest.approx(expected, rel=1e-5)


def test_other_labels_out_of_range_are_refused(classification):
    uq, x, label = classification
    with pytest.raises(DataError, match="Expected labels from 0 to 2, but got 3"):
        sp.evaluate(uq, (x, label + 1))


@pytest.mark.parametrize(("shape", "axis"), [((4, 3, 5, 5), 1), ((4, 6, 3), -1)])
def test_dense_classes_count_every_position_and_sets_are_read(shape, axis):
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(shape, generator=generator).softmax(axis)
    score = torch.rand(probs.amax(axis).shape, generator=generator)
    label = torch.randint(3, score.shape, generator=generator)
    label[:, 0] = 7
    sets = probs > 0.3
    out = classes_of(probs, score, axis, Conformity(torch.full((3, 19), -0.3), axis))
    figures = sp.evaluate(Scripted((out, label), ignore_index=7, others=[out]), None, adversarial=[])
    kept = torch.where(label == 7, -100, label)
    assert figures["nll"] == pytest.approx(metrics.nll(out, kept))
    assert figures["set_coverage"] == pytest.approx(metrics.set_coverage(out, kept))
    assert figures["set_size"] == pytest.approx(float(sets.sum(axis)[label != 7].double().mean()))
    wrong = (out.label != label) & (label != 7)
    right = (out.label == label) & (label != 7)
    assert figures["auroc_error"] == pytest.approx(metrics.auroc(score[right], score[wrong]))
    assert figures["auroc_adversarial"] == figures["auroc_adversarial_entropy"] == 0.5
    assert figures["rows"] == 4


def test_one_class_axis_of_size_one_in_the_labels_is_the_same():
    probs = torch.full((2, 2, 3, 3), 0.5)
    label = torch.zeros(2, 3, 3).long()
    both = [sp.evaluate(Scripted((classes_of(probs, probs[:, 0]), y)), None) for y in (label, label[:, None])]
    assert both[0] == pytest.approx(both[1], nan_ok=True)


def test_without_errors_there_is_nothing_to_find():
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    figures = sp.evaluate(Scripted((classes_of(probs, probs[:, 0]), torch.tensor([0, 1]))), None)
    assert figures["accuracy"] == 1
    assert math.isnan(figures["auroc_error"])
    assert figures["aurc"] == 0


# The pass


def test_every_row_goes_through_the_model_once_and_a_stream_is_enough(regression):
    uq, x, y = regression
    rows = []
    hook = uq.base.register_forward_hook(lambda _module, args, _output: rows.append(len(args[0])))
    try:
        figures = sp.evaluate(uq, ((x[i : i + 30], y[i : i + 30]) for i in range(0, 100, 30)), ood=(x + 9))
    finally:
        hook.remove()
    assert rows == [30, 30, 30, 10, 64, 36]
    assert figures["rows"] == 100


def test_predictions_and_targets_of_each_batch_come_in_order(regression):
    uq, x, y = regression
    pairs = list(uq.labelled((x, y)))
    assert [len(out) for out, _ in pairs] == [64, 36]
    assert torch.equal(torch.cat([target for _, target in pairs]), y)
    torch.testing.assert_close(torch.cat([out.mean for out, _ in pairs]), uq(x).mean)


@pytest.mark.parametrize("data", [[], "unlabelled"])
def test_data_without_rows_or_targets_are_refused(regression, data):
    uq, x, _ = regression
    message = "got no batch" if data == [] else "Expected batches with a target"
    with pytest.raises(DataError, match=message):
        sp.evaluate(uq, data if data == [] else x)
