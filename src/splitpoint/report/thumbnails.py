"""Pictures that a method doubts most and least, with what it takes them for."""

from __future__ import annotations

import html

from splitpoint.report import names
from splitpoint.report.sheets import Sheet, Thumbnail

SIDE = 56
OUTSIDE = "outside"
"""Groups with this word hold pictures of other data sets, for which no answer is right."""


def draw(sheet: Sheet) -> str:
    """A row of pictures for each group, the predicted class below each, marked where it is wrong; empty without any."""
    rows = "".join(
        f"<h5>{html.escape(group.capitalize())}</h5><ul>"
        + "".join(_item(one, outside=OUTSIDE in group) for one in pictures)
        + "</ul>"
        for group, pictures in sheet.thumbnails.items()
        if pictures
    )
    if not rows:
        return ""
    caption = (
        f"By the epistemic score of {names.title(sheet.method)}, the extreme ones first. Below each picture the class "
        "that is predicted; ✕ where it is wrong, with the right one."
    )
    return f'<figure class="thumbnails">{rows}<figcaption>{html.escape(caption)}</figcaption></figure>'


def _item(one: Thumbnail, *, outside: bool) -> str:
    wrong = not outside and one.predicted != one.label
    alt = f"predicted {one.predicted}, {'out of distribution' if outside else f'label {one.label}'}"
    said = f"✕ {one.predicted}, is {one.label}" if wrong else str(one.predicted)
    mark = ' class="wrong"' if wrong else ""
    style = ' class="pixels"' if one.width <= SIDE else ""
    return (
        f'<li{mark}><img src="data:image/png;base64,{html.escape(one.picture)}" width="{SIDE}" height="{SIDE}" '
        f'alt="{alt}{", wrong" if wrong else ""}"{style}><small>{said}</small></li>'
    )
