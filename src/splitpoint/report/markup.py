"""Pieces of HTML that several parts of the page are made of."""

from __future__ import annotations

import html
from collections.abc import Sequence


def figure(drawn: str, caption: str, *, tiled: bool = False) -> str:
    """A drawing that scrolls sideways where it must, or several side by side, with a caption."""
    box = 'class="small-multiples"' if tiled else 'class="scroll" tabindex="0"'
    return f"<figure><div {box}>{drawn}</div><figcaption>{html.escape(caption)}</figcaption></figure>"


def tabs(name: str, kind: str, titles: Sequence[str]) -> str:
    """Buttons for the panels of `name`, hidden until the script shows them; none for a single panel."""
    if len(titles) < 2:
        return ""
    buttons = "".join(
        f'<button type="button" role="tab" id="tab-{name}-{index}" '
        f'aria-controls="panel-{name}-{index}">{html.escape(title)}</button>'
        for index, title in enumerate(titles)
    )
    return f'<div class="tabs" role="tablist" aria-label="{html.escape(kind)}" hidden>{buttons}</div>'


def panel(name: str, index: int, count: int, title: str, content: str) -> str:
    """Panel number `index` of the `count` of `name`."""
    place = f"{name}-{index}"
    roles = f' role="tabpanel" aria-labelledby="tab-{place}"' if count > 1 else ""
    return f'<div class="panel" id="panel-{place}"{roles}><h3>{html.escape(title)}</h3>{content}</div>'
