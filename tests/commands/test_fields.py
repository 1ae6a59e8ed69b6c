"""A prediction as columns: names of outputs, levels and classes, and the most probable ones where there are many."""

import pytest
import torch

import splitpoint as sp
from splitpoint.commands.columns import Columns
from splitpoint.commands.fields import as_columns, chosen_fields, flagged_in
from splitpoint.errors import SettingsError


def numbers(shape, targets=("price",)):
    values = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    found = sp.RegressionPrediction(
        values,
        values + 1,
        values + 2,
        None,
        mean=values,
        levels=(0.5, 0.9),
        lowers=torch.stack([values - 1, values - 2], -1),
        uppers=torch.stack([values + 1, values + 2], -1),
    )
    return found, Columns("regression", ("a",), (1,), targets)


def classes(count, names=()):
    probs = torch.linspace(1, 2, 2 * count).reshape(2, count).softmax(1)
    score = torch.zeros(2)
    found = sp.ClassificationPrediction(
        score, score, score, None, probs=probs, base_probs=probs.flip(1), label=probs.argmax(1)
    )
    return found, Columns("classification", ("a",), (1,), ("kind",), names)


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_one_output_has_plain_names(shape):
    prediction, columns = numbers(shape)
    found = as_columns(prediction, ("mean", "lower", "upper", "epistemic"), columns)
    assert {name: values.tolist() for name, values in found.items()} == {
        "mean": [0, 1, 2],
        "lower_0.5": [-1, 0, 1],
        "lower_0.9": [-2, -1, 0],
        "upper_0.5": [1, 2, 3],
        "upper_0.9": [2, 3, 4],
        "epistemic": [1, 2, 3],
    }


def test_several_outputs_end_with_their_target_or_number():
    prediction, columns = numbers((2, 2), ("price", "size"))
    found = as_columns(prediction, ("mean", "upper"), columns)
    assert list(found)[:4] == ["mean_price", "mean_size", "upper_0.5_price", "upper_0.5_size"]
    assert found["mean_size"].tolist() == [1, 3]
    assert list(as_columns(*numbers((2, 2))[:1], ("total",), columns=numbers((2, 2))[1])) == ["total_0", "total_1"]


def test_classes_have_a_column_each():
    prediction, columns = classes(3, ("cat", "dog", "eel"))
    found = as_columns(prediction, ("label", "probs", "base_probs"), columns)
    assert found["label"] == ["eel", "eel"]
    assert list(found)[1:4] == ["prob_cat", "prob_dog", "prob_eel"]
    assert found["prob_cat"].tolist() == prediction.probs[:, 0].tolist() == found["base_prob_eel"].tolist()
    assert as_columns(*classes(2)[:1], ("label",), classes(2)[1])["label"] == [1, 1]


def test_of_many_classes_there_are_the_most_probable_ones():
    prediction, columns = classes(21)
    found = as_columns(prediction, ("probs",), columns)
    assert len(found) == 10
    assert found["prob_top1_label"] == [20, 20]
    assert found["prob_top5_label"] == [16, 16]
    assert found["prob_top1"].tolist() == prediction.probs[:, 20].tolist()


def test_maps_do_not_fit_into_a_table():
    prediction, columns = numbers((2, 1, 4, 4))
    with pytest.raises(SettingsError, match=r"numbers for each row, but its answers have shape \(1, 4, 4\)"):
        as_columns(prediction, ("mean",), columns)


def test_usual_fields_depend_on_the_threshold():
    assert chosen_fields("regression", None, False)[-1] == "support"
    assert chosen_fields("classification", None, True)[-2:] == ("percentile", "flagged")
    assert chosen_fields("regression", ["sds", "mean", "mean"], False) == ("sds", "mean")
    with pytest.raises(SettingsError, match=r"--fields of a regression among mean, .* but got probs"):
        chosen_fields("regression", ["probs"], True)
    with pytest.raises(SettingsError, match=r"a threshold for flagged, but this one has none; .*--threshold-data"):
        chosen_fields("regression", ["flagged"], False)
    prediction, columns = numbers((2,))
    with pytest.raises(SettingsError, match="it has no sds"):
        as_columns(prediction, ("sds",), columns)


def test_a_row_is_flagged_where_any_of_its_outputs_is():
    marks = {"flagged_a": torch.tensor([True, False, False]), "flagged_b": torch.tensor([True, True, False])}
    assert flagged_in({name: values.numpy() for name, values in marks.items()}) == 2
    assert flagged_in({"mean": [1, 2]}) == 0
