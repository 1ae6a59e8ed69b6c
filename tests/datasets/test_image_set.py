import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

from image_files import labels_of, noise_images
from splitpoint.datasets.image_set import Joined, StoredImages, fitted
from splitpoint.errors import DataError, SettingsError


def stored(count=7, shape=(3, 4, 5), classes=3, seed=0):
    return StoredImages("noise", noise_images(count, shape, seed), labels_of(count, classes), classes)


def test_an_image_is_a_float_in_the_unit_range_with_its_label():
    images = stored()
    x, y = images[4]
    assert (x.dtype, x.shape, y.dtype, y.shape, int(y)) == (torch.float32, (3, 4, 5), torch.int64, (), 1)
    assert torch.equal(x * 255, torch.from_numpy(images.stored[4]).float())
    assert torch.equal(images[-3][0], x)
    assert len(images) == len(list(images)) == 7
    assert images.labels.dtype == torch.int64


def test_a_loader_of_pytorch_reads_batches():
    images = stored()
    batches = list(DataLoader(images, batch_size=3))
    assert [len(x) for x, _ in batches] == [3, 3, 1]
    assert torch.equal(torch.cat([y for _, y in batches]), images.labels)
    assert torch.equal(torch.cat([x for x, _ in batches]), images.pixels(range(7)) / 255)


@given(st.lists(st.integers(-7, 6), max_size=10))
def test_pixels_come_in_the_order_of_the_places(places):
    images = stored()
    assert images.pixels(places).dtype == torch.uint8
    assert np.array_equal(images.pixels(places).numpy(), images.stored[np.array(places, int)])
    assert torch.equal(images.pixels(torch.tensor(places, dtype=torch.int64)), images.pixels(places))


def test_places_outside_and_masks_are_refused():
    images = stored()
    with pytest.raises(IndexError, match="Expected places of a set of 7 images, but got 2 to 7"):
        images.pixels([2, 7])
    with pytest.raises(IndexError, match="but got -8 to -8"):
        images[-8]
    with pytest.raises(SettingsError, match=r"but got torch.bool of shape .*; give row numbers, not a mask"):
        images.at(torch.ones(7, dtype=torch.bool))
    with pytest.raises(SettingsError, match="Expected places as one row of whole numbers"):
        images.at(torch.zeros((1, 1), dtype=torch.int64))


def test_a_part_is_a_view_and_so_is_a_part_of_it():
    images = stored()
    part = images.at(torch.tensor([5, 0, 3]))
    assert torch.equal(part.labels, images.labels[[5, 0, 3]])
    assert torch.equal(part.pixels([2, 0]), images.pixels([3, 5]))
    inner = part.at(torch.tensor([1, 2]))
    assert inner.images is images
    assert torch.equal(inner.pixels([0, 1]), images.pixels([0, 3]))
    assert (part.name, part.classes, part.shape) == ("noise", 3, (3, 4, 5))


def test_sets_in_a_row_are_read_across_their_borders():
    one, two = stored(3), stored(4, seed=1)
    both = Joined("both", [one, two], 3)
    assert torch.equal(both.labels, torch.cat([one.labels, two.labels]))
    found = both.pixels([6, 0, 2, 3, -1])
    assert torch.equal(found, torch.cat([two.pixels([3]), one.pixels([0, 2]), two.pixels([0, 3])]))
    with pytest.raises(DataError, match="Expected the parts of both to have one shape"):
        Joined("both", [one, stored(2, (1, 4, 5))], 3)


def test_the_same_shape_is_the_same_set():
    images = stored()
    assert images.fitted_to((3, 4, 5)) is images


def test_grey_becomes_three_equal_channels_and_back():
    grey = stored(2, (1, 4, 5))
    colour = grey.fitted_to((3, 4, 5))
    assert colour.shape == (3, 4, 5)
    assert torch.equal(colour.pixels([0, 1]), grey.pixels([0, 1]).expand(-1, 3, -1, -1))
    assert torch.equal(colour.fitted_to((1, 4, 5)).pixels([0, 1]), grey.pixels([0, 1]))


def test_colour_becomes_grey_as_pillow_has_it():
    images = stored(1, (3, 20, 30))
    expected = Image.fromarray(images.stored[0].transpose(1, 2, 0)).convert("L")
    found = images.fitted_to((1, 20, 30)).pixels([0])[0, 0]
    assert (found.int() - torch.from_numpy(np.array(expected)).int()).abs().max() <= 1


def test_shrinking_takes_the_mean_of_areas():
    images = stored(2, (3, 8, 8))
    blocks = images.stored.reshape(2, 3, 4, 2, 4, 2).mean((3, 5))
    assert np.abs(images.fitted_to((3, 4, 4)).pixels([0, 1]).numpy() - blocks).max() <= 0.5


def test_growing_is_bilinear_and_keeps_constants():
    ramp = np.arange(0, 160, 20, dtype=np.uint8).reshape(1, 1, 1, 8).repeat(8, 2)
    grown = fitted(torch.from_numpy(ramp), (1, 8, 16))[0, 0, 0].tolist()
    assert grown[:5] == [0, 5, 15, 25, 35]
    constant = torch.full((1, 1, 28, 28), 77, dtype=torch.uint8)
    for shape in ((3, 32, 32), (1, 20, 40), (3, 7, 224)):
        result = fitted(constant, shape)
        assert result.shape == (1, *shape)
        assert result.unique().tolist() == [77]
        assert result.is_contiguous()


@pytest.mark.parametrize("shape", [(2, 4, 4), (3, 0, 4), (3, 4)])
def test_a_shape_that_is_none_is_refused(shape):
    with pytest.raises(SettingsError, match=r"Expected a shape \(1 or 3 channels, height, width\), but got"):
        stored().fitted_to(shape)


def test_arrays_that_do_not_belong_together_are_refused():
    with pytest.raises(DataError, match=r"but got uint8 \(7, 3, 4, 5\) and labels \(6,\)"):
        StoredImages("noise", noise_images(7, (3, 4, 5)), labels_of(6, 3), 3)
    with pytest.raises(DataError, match="but got float64"):
        StoredImages("noise", np.zeros((7, 3, 4, 5)), labels_of(7, 3), 3)
    with pytest.raises(DataError, match="Expected labels of noise from 0 to 1, but got 0 to 2"):
        StoredImages("noise", noise_images(7, (3, 4, 5)), labels_of(7, 3), 2)
