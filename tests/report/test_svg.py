"""Drawing by hand: scales, ticks, lines and words."""

import math
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from splitpoint.report import svg


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 9))
def test_ticks_are_evenly_spaced_inside_and_not_too_many(low, span, most):
    found = svg.ticks(low, low + span, most)
    assert len(found) <= most + 1
    assert all(low - 1e-6 * span <= tick <= low + span + 1e-6 * span for tick in found)


def test_scales_and_ranges():
    assert svg.Scale(0, 10, 100, 200)(5) == 150
    assert svg.Scale(3, 3, 100, 200)(3) == 150
    assert svg.around([1.0, math.nan, 3.0], 0.5) == (0.0, 4.0)
    assert svg.around([2.0]) == (1.8, 2.2)
    assert svg.around([]) == (0.0, 1.0)
    assert svg.ticks(2, 2) == [2]


def test_lines_break_where_a_number_is_missing():
    assert 'd="M0.0 0.0M2.0 2.0L3.0 3.0"' in svg.curve([(0, 0), (1, math.nan), (2, 2), (3, 3)])


def test_words_are_escaped():
    assert "a &lt; b" in svg.text(0, 0, "a < b")
    drawing = ElementTree.fromstring(svg.drawing(10, 10, 'say "a" < b', [svg.text(0, 0, "<")]))
    assert drawing.get("aria-label") == 'say "a" < b'
    assert drawing[0].text == "<"


def test_frames_scale_from_left_to_right_and_upwards():
    frame = svg.Frame(width=100, height=50, left=10, right=90, top=5, bottom=45)
    assert (frame.across(0, 1)(0), frame.across(0, 1)(1)) == (10, 90)
    assert (frame.upwards(0, 1)(0), frame.upwards(0, 1)(1)) == (45, 5)
