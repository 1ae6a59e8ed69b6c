"""The groups that recorded rows belong to: images of positions, patients of rows, over batches and from disk."""

import pytest
import torch
from torch import nn

import splitpoint as sp
from splitpoint.errors import CacheError, DataError
from splitpoint.recording import Recording, Source, record
from splitpoint.tasks import Classification, Regression
from splitpoint.training import folded, held_back

ANN_AND_BOB = ["ann", "bob", "ann", "ann", "bob"]


def source(task=None, positions=4):
    return Source(task or Regression(), None, None, batch_size=2, positions=positions)


def convolution(outputs=1):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 1), nn.Conv2d(3, outputs, 1)).eval()


def images(count=5):
    """Images of which every target is a hundred times their number; the second has no target at some positions."""
    x = torch.randn(count, 2, 4, 3, generator=torch.Generator().manual_seed(0))
    y = (100.0 * torch.arange(count))[:, None, None, None].expand(count, 1, 4, 3).clone()
    y[1, :, :3] = torch.nan
    return x, y


def recorded(model, data, own=None, **more):
    return record(model, data, own or source(), **({"cache": None, "label": "train", "progress": False} | more))


def test_positions_belong_to_their_image_counted_over_all_batches():
    table = recorded(convolution(), images()).table
    targets = (table.column("output") + table.column("residual"))[:, 0]
    assert torch.equal(table.groups(), (targets / 100).round().long())
    assert table.groups().bincount().tolist() == [4, 3, 4, 4, 4]


def test_labels_and_steps_of_sequences_belong_to_their_row_too():
    x, _ = images()
    maps = recorded(convolution(3), (x, torch.ones(5, 4, 3).long()), source(Classification()))
    steps = recorded(nn.Linear(2, 1).eval(), (torch.randn(3, 6, 2), torch.randn(3, 6, 1)))
    assert maps.table.groups().tolist() == torch.arange(5).repeat_interleave(4).tolist()
    assert steps.table.groups().tolist() == torch.arange(3).repeat_interleave(4).tolist()


def test_rows_stand_for_themselves_unless_they_are_told_to_belong_together():
    model, x = nn.Linear(2, 1).eval(), torch.randn(5, 2)
    y = torch.tensor([0.0, 1.0, torch.nan, 3.0, 4.0])
    assert recorded(model, (x, y)).table.groups() is None
    method = sp.SplitPointRegressor()
    told = method.record(model, (x, y), groups=ANN_AND_BOB, progress=False).table
    of_arrays = Recording.of(Regression(), x, torch.zeros(5), y, groups=ANN_AND_BOB).table
    assert told.groups().tolist() == of_arrays.groups().tolist() == [0, 1, 0, 1]


def test_images_can_belong_together_as_well():
    x, y = images()
    table = recorded(convolution(), (x, y), groups=torch.tensor([3, 1, 3, 0, 1])).table
    assert table.groups().bincount().tolist() == [4, 7, 8]


@pytest.mark.parametrize("groups", [ANN_AND_BOB[:4], [*ANN_AND_BOB, "eve"]])
def test_another_number_of_groups_than_rows_is_refused(groups):
    x, y, model = torch.randn(5, 2), torch.randn(5, 1), nn.Linear(2, 1).eval()
    found = rf"Expected one group for each row of the train data, but got {len(groups)} for (at least )?5 rows; give"
    with pytest.raises(DataError, match=found):
        sp.SplitPointRegressor(rows_per_call=2).record(model, (x, y), groups=groups, progress=False)
    with pytest.raises(DataError, match=found.replace("train", "recorded")):
        Recording.of(Regression(), x, torch.zeros(5), y, groups=groups)


def test_groups_are_the_same_from_memory_and_from_disk(tmp_path):
    model, data = convolution(), images()
    kept = recorded(model, data).table
    for _ in range(2):  # written, then read
        assert torch.equal(recorded(model, data, cache=tmp_path / "maps").table.groups(), kept.groups())
    rows, groups = (torch.randn(5, 2), torch.randn(5, 1)), torch.tensor([0, 1, 0, 0, 1])
    told = recorded(nn.Linear(2, 1).eval(), rows, cache=tmp_path / "rows", groups=groups)
    assert told.table.groups().tolist() == [0, 1, 0, 0, 1]


def test_a_cache_of_other_groups_is_refused(tmp_path):
    model, rows = nn.Linear(2, 1).eval(), (torch.randn(5, 2), torch.randn(5, 1))
    recorded(model, rows, cache=tmp_path, groups=torch.tensor([0, 1, 0, 0, 1]))
    for other in (None, torch.tensor([0, 1, 0, 1, 1])):
        with pytest.raises(CacheError, match=r"Expected the data that .* was recorded from, but batch"):
            recorded(model, rows, cache=tmp_path, groups=other)


def test_folds_and_held_back_rows_are_whole_images():
    table = recorded(convolution(), images(20)).table
    groups = table.groups()
    for member in [*folded(table, 4, torch.Generator())[:-1], held_back(table, 0.3, torch.Generator())]:
        assert member.left_out.any()
        assert not set(groups[member.left_out].tolist()) & set(groups[~member.left_out].tolist())
    assert int(held_back(table, 0.3, torch.Generator()).left_out.sum()) in range(20, 25)
