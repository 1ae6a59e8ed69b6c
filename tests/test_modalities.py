"""Modalities by name, and rows that lack one: scored by the others, said in the prediction, refused in a fit."""

import warnings

import pytest
import torch
from torch import nn

import splitpoint as sp
from branch_models import Late, inputs, labelled_rows, trained
from splitpoint.baselines import METHODS
from splitpoint.errors import DataError, LayerError, SplitPointWarning

NAMES = ("image", "audio", "text")
LAYERS = {"image": "image.1", "audio": "audio.1", "text": "text.1"}


@pytest.fixture(scope="module")
def data():
    return labelled_rows()


@pytest.fixture(scope="module")
def model(data):
    torch.manual_seed(0)
    return trained(Late(), data)


def classifier(**settings):
    return sp.SplitPointClassifier(**{"epochs": 1, "layer": LAYERS} | settings)


@pytest.fixture(scope="module")
def clf(model, data):
    return classifier().fit(model, data, progress=False).set_threshold(data)


@pytest.fixture(scope="module")
def uq(model, data):
    *x, label = data
    targets = torch.nn.functional.one_hot(label, 3).float() + 0.1 * torch.randn(len(label), 3)
    return sp.SplitPointRegressor(epochs=1, folds=0).fit(model, (*x, targets), progress=False)


def lacking(x, *gone):
    return tuple(None if number in gone else own for number, own in enumerate(x))


# Names


def test_names_of_modalities_are_in_the_predictor_and_its_predictions(clf, data):
    assert clf.layer == "image=image.1 + audio=audio.1 + text=text.1"
    assert "layer: image=image.1 + audio=audio.1 + text=text.1 (as asked for)" in repr(clf)
    assert clf(*data[:3]).branches == NAMES


def test_a_modality_is_a_layer_or_its_name(model, data, clf):
    other = classifier(layer={"image": model.image[1], "audio": "audio.1", "text": "text.2:input"})
    found = other.fit(model, data, progress=False)
    assert torch.equal(found(*data[:3]).support, clf(*data[:3]).support)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({}, "to name modalities"),
        ({1: "image.1"}, "to name modalities"),
        ({"image": 1}, "to name modalities"),
        ({"image": "picture"}, "none called 'picture'"),
        ({"image": nn.Linear(1, 1)}, "not part of it"),
    ],
)
def test_a_mapping_that_names_no_layers_is_one_sentence(model, data, layer, message):
    with pytest.raises(LayerError, match=message):
        classifier(layer=layer).fit(model, data, progress=False)


def test_names_are_saved_and_loaded(model, data, clf, tmp_path):
    clf.save(tmp_path / "clf.safetensors")
    loaded = sp.load(tmp_path / "clf.safetensors", model)
    assert loaded.layer == clf.layer
    for x in (data[:3], lacking(data[:3], 1)):
        one, other = clf(*x), loaded(*x)
        assert torch.equal(one.support, other.support)
        assert torch.equal(one.missing, other.missing)
        assert other.branches == NAMES


def test_a_cache_that_is_resumed_knows_the_branches(model, data, tmp_path):
    first = classifier(cache=tmp_path).fit(model, data, progress=False)
    again = classifier(cache=tmp_path).fit(model, data, progress=False)
    assert again.tap.branches == first.tap.branches
    x = lacking(data[:3], 0)
    assert torch.equal(again(*x).support, first(*x).support)


def test_recorded_rows_of_modalities_are_those_of_the_same_names(model, data):
    rows = classifier().record(model, data, progress=False)
    assert classifier().fit_rows(rows, progress=False)(*lacking(data[:3], 2)).missing[0].tolist() == [
        False,
        False,
        True,
    ]


# Rows that lack one


def test_what_is_missing_is_said_for_every_row(clf, data):
    assert not clf(*data[:3]).missing.any()
    batches = [lacking(inputs(4), 1), inputs(3), lacking(inputs(2), 0, 2)]
    found = clf.predict(batches)
    assert found.missing.tolist() == [[False, True, False]] * 4 + [[False] * 3] * 3 + [[True, False, True]] * 2
    assert found[4:].missing.tolist() == found.missing.tolist()[4:]
    for x in batches:
        torch.testing.assert_close(clf(*x).support, clf.predict([x]).support)


def test_whole_arrays_may_lack_a_modality(clf, data):
    image, _, text, label = data
    expected = clf(image, None, text)
    for given in ((image, None, text), (image, None, text, label), {"image": image, "audio": None, "text": text}):
        torch.testing.assert_close(clf.predict(given).support, expected.support)


def test_the_answer_is_that_of_the_model_without_it(clf, model, data):
    x = lacking(data[:3], 1)
    with torch.no_grad():
        expected = model(*x).softmax(1)
    torch.testing.assert_close(clf(*x).base_probs, expected)


def test_probabilities_of_rows_that_lack_one_are_the_models_own(model, data):
    held_out = labelled_rows(seed=9)
    found = classifier().fit(model, data, calibration=held_out, progress=False)
    whole, part = found(*data[:3]), found(*lacking(data[:3], 1))
    assert not torch.allclose(whole.probs, whole.base_probs)
    torch.testing.assert_close(part.probs, part.base_probs)


@pytest.mark.parametrize("gone", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize("name", ["clf", "uq"])
def test_the_others_score_the_rows(name, gone, data, request):
    """Ordinary rows stay ordinary, and each of the others that is moved away moves the score."""
    predictor, x = request.getfixturevalue(name), data[:3]
    usual, found = predictor(*x).support, predictor(*lacking(x, *gone)).support
    assert found.isfinite().all()
    if name == "uq":
        assert 0.5 < float(found.mean() / usual.mean()) < 2
    for number in set(range(3)) - set(gone):
        moved = [own + 100 if place == number else own for place, own in enumerate(x)]
        assert (predictor(*lacking(moved, *gone)).support > found.max()).all()


def test_distances_are_those_of_a_fit_on_the_others_alone(model, data):
    """The covariance of the others alone, to the nearest of the same class centres."""
    support = classifier().fit(model, data, progress=False)
    marginal = support._by_others((False, True, False)).support
    features = support.tap(*data[:3]).features
    rows = torch.cat(features, 1)
    blank = torch.cat([features[0], support.typical[8:16].expand(len(rows), -1), features[2]], 1)
    x = ((blank - marginal.center) / marginal.spread).double()
    whiten = support.support.whiten.double()
    precision = whiten @ whiten.T
    kept = torch.cat([torch.arange(8), torch.arange(16, 24)])
    covariance = torch.linalg.inv(precision)[kept][:, kept]
    centres = (support.support.centres.double() @ torch.linalg.inv(whiten))[:, kept]
    d = x[:, None, kept] - centres
    expected = torch.einsum("nkc,nkc->nk", d @ torch.linalg.inv(covariance), d).amin(1).mul(24 / 16).sqrt()
    torch.testing.assert_close(marginal.distance(blank).double(), expected, rtol=1e-3, atol=1e-3)


def test_the_threshold_holds_for_rows_that_lack_one(clf, data):
    clf(*lacking(data[:3], 1))  # before the threshold is set again
    clf.set_threshold(data, quantile=0.5)
    assert 0.4 < float(clf(*data[:3]).flagged.float().mean()) < 0.6
    assert torch.equal(clf(*lacking(data[:3], 1)).reference.threshold, clf.threshold)


def test_branches_that_are_found_may_be_missing_too(uq, data):
    assert uq.tap.branches[0].name == "image.2"
    found = uq(*lacking(data[:3], 0))
    assert found.branches == ("image.2", "audio.2", "text.2")
    assert found.missing[0].tolist() == [True, False, False]
    assert found.lower.isfinite().all()
    assert (found.lower < found.upper).all()


def test_a_rival_that_reads_features_scores_the_rows(model, data):
    ddu = METHODS["ddu"].method(layer=LAYERS).fit(model, data, progress=False)
    found = ddu(*lacking(data[:3], 2))
    assert found.missing[0].tolist() == [False, False, True]
    assert found.support.isfinite().all()


def test_predictions_of_one_place_have_no_branches(model, data):
    with pytest.warns(SplitPointWarning):
        found = classifier(layer="image.1").fit(model, data, progress=False)(*data[:3])
    assert found.missing is None
    assert found.branches == ()


def test_rows_without_any_branch_are_refused(data):
    def fuse(_net, parts):
        return sum(parts) if parts else torch.zeros(5, 3)

    torch.manual_seed(0)
    found = classifier().fit(Late(fuse), data, progress=False)
    with pytest.raises(LayerError, match="to run and give a floating-point tensor"):
        found()


@pytest.mark.parametrize("part", ["train", "calibration"])
def test_a_fit_on_rows_that_lack_one_is_one_sentence(model, data, part):
    *x, label = data
    batches = [(*x, label), (*lacking(x, 1), label)]
    given = {"train": (batches, None), "calibration": (data, batches)}[part]
    with pytest.raises(DataError, match=rf"every branch of the model to run on the {part} data, but audio did not; "):
        classifier().fit(model, given[0], calibration=given[1], progress=False)


def test_layers_of_a_list_are_no_branches(model, data):
    found = classifier(layer=list(LAYERS.values())).fit(model, data, progress=False)
    assert found(*data[:3]).missing is None
    with pytest.raises(LayerError, match=r"Expected layer 'audio.1' to run"):
        found(*lacking(data[:3], 1))


# Inputs that nothing sees


def test_an_input_that_moves_the_output_but_no_feature_is_a_warning(model, data):
    with pytest.warns(SplitPointWarning, match=r"inputs: input 1, input 3 move the model's output, but not"):
        found = classifier(layer="audio.1").fit(model, data, progress=False)
    (check,) = [own for own in found.checks if own.name == "inputs"]
    assert (check.verdict, check.value) == ("warn", 2)
    assert "layer={'image': ..., 'text': ...}" in check.advice


def test_inputs_have_their_names_in_the_warning(model, data):
    named = dict(zip((*NAMES, "labels"), data, strict=True))
    with pytest.warns(SplitPointWarning, match=r"inputs: audio moves the model's output"):
        classifier(layer=["image.1", "text.1"]).fit(model, named, progress=False)


def test_inputs_that_are_seen_or_do_nothing_are_no_warning(model, data):
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model

        def forward(self, image, audio, text, idle):
            return self.net(image, audio, text)

    *x, label = data
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = classifier(layer=None).fit(Idle(), (*x, torch.randn(len(label), 2), label), progress=False)
    assert not [own for own in found.checks if own.name == "inputs"]
