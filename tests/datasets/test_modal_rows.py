"""Rows with several modalities: parts of them, and splits that keep groups whole."""

import pytest
import torch

from splitpoint.datasets.modal_rows import ModalRows, joined, split_classes
from splitpoint.errors import DataError, SettingsError


def rows(count=4):
    inputs = {"image": torch.arange(4.0)[:, None], "text": ("a", "b", "c", "d")}
    return ModalRows(inputs, torch.tensor([0, 0, 1, 1]), torch.arange(4)).at(range(count))


def test_a_part_has_the_same_rows_of_every_modality():
    part = rows().at(torch.tensor([3, 1]))
    assert part.inputs["image"].flatten().tolist() == [3, 1]
    assert part.inputs["text"] == ("d", "b")
    assert (part.labels.tolist(), part.groups.tolist(), len(part)) == ([1, 0], [3, 1], 2)
    assert part.modalities == ("image", "text")
    assert len(rows().at([])) == 0
    assert rows().at([-1]).inputs["text"] == ("d",)


def test_parts_are_put_one_after_the_other():
    both = joined([rows().at([1]), rows().at([2, 0])])
    assert both.inputs["image"].flatten().tolist() == [1, 2, 0]
    assert (both.inputs["text"], both.labels.tolist(), both.groups.tolist()) == (("b", "c", "a"), [0, 1, 0], [1, 2, 0])
    one = ModalRows({"text": ("a",)}, torch.tensor([0]), torch.tensor([0]))
    with pytest.raises(DataError, match=r"same modalities, but got \[\['image', 'text'\], \['text'\]\]\."):
        joined([rows(), one])


def test_another_input_of_one_modality_leaves_the_rows_as_they_were():
    before = rows()
    after = before.having("image", torch.zeros(4, 1))
    assert (after.inputs["image"].sum(), before.inputs["image"].sum()) == (0, 6)
    assert after.modalities == before.modalities
    with pytest.raises(SettingsError, match="a modality among image, text, but got 'sound'"):
        before.having("sound", torch.zeros(4, 1))


def test_rows_that_do_not_fit_together_are_refused():
    with pytest.raises(DataError, match="but got 2 of text, 3 of labels, 3 of groups"):
        ModalRows({"text": ("a", "b")}, torch.arange(3), torch.arange(3))
    with pytest.raises(DataError, match=r"Expected labels as one row of int64, but got torch.float32 of shape \(2,\)"):
        ModalRows({"text": ("a", "b")}, torch.zeros(2), torch.arange(2))
    with pytest.raises(DataError, match="Expected places of a set of 4"):
        rows().at([4])


def test_groups_stay_whole_and_every_class_is_shared_out():
    labels = torch.arange(3).repeat_interleave(20)
    groups = torch.arange(30).repeat_interleave(2)
    parts = split_classes(labels, groups, (0.7, 0.2, 0.1), torch.Generator().manual_seed(0))
    assert [torch.bincount(labels[part]).tolist() for part in parts] == [[14] * 3, [4] * 3, [2] * 3]
    owners = [set(groups[part].tolist()) for part in parts]
    assert len(set.union(*owners)) == sum(map(len, owners)) == 30
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(60))


def test_a_class_of_too_few_groups_is_whole_in_the_first_part():
    labels, groups = torch.tensor([0, 0, 0, 0, 1, 1]), torch.tensor([0, 1, 2, 3, 4, 4])
    first, second = split_classes(labels, groups, (0.5, 0.5), torch.Generator().manual_seed(0))
    assert (len(first), len(second)) == (4, 2)
    assert {4, 5} <= set(first.tolist())
