import numpy as np
import pytest

from splitpoint.datasets.depth_scale import InverseBytes, Metres, Steps

BYTES = np.array([0, 1, 51, 254, 255], np.uint8)


def test_metres_are_metres_and_what_is_no_distance_is_nan():
    scale, stored = Metres(), np.array([2.5, 0.5, 0.0, -1.0, np.nan, np.inf], np.float32)
    assert np.array_equal(scale.metres(stored), [2.5, 0.5, *[np.nan] * 4], equal_nan=True)
    assert np.array_equal(scale.inverse(stored), np.array([0.4, 1.0, *[np.nan] * 4], np.float32), equal_nan=True)


def test_steps_know_nothing_at_both_ends():
    metres = Steps(0.04).metres(BYTES)
    assert metres.dtype == np.float32
    assert np.isnan(metres[[0, 4]]).all()
    assert metres[1:4] == pytest.approx([0.04, 2.04, 10.16])
    assert Steps(0.04).inverse(BYTES)[1:4] == pytest.approx([1, 1 / 2.04, 1 / 10.16])


def test_inverse_bytes_are_255_over_metres_and_leave_nothing_out_in_inverse_depth():
    metres = InverseBytes().metres(BYTES)
    assert metres.dtype == np.float32
    assert np.isnan(metres[[0, 4]]).all()
    assert metres[1:4] == pytest.approx([255, 5, 255 / 254])
    assert InverseBytes().inverse(BYTES) == pytest.approx([0, 1 / 255, 0.2, 254 / 255, 1])


def test_what_is_written_as_inverse_bytes_comes_back():
    depth = np.linspace(1.1, 9.9, 50)
    stored = np.clip(255 / depth, 0, 255).round().astype(np.uint8)
    assert 1 / InverseBytes().metres(stored) == pytest.approx(1 / depth, abs=0.5 / 255)
