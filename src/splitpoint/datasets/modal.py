"""Sets with several modalities: rows that are seen in more than one way, read from the folders of SPLITPOINT_DATA.

`splits` gives the parts of a set. The modalities of a row are an image, a sound, a text or vectors; images are in
[0, 1].
"""

from __future__ import annotations

from splitpoint.datasets.entry import locate, missing
from splitpoint.datasets.modal_rows import Input, ModalRows, ModalSplits, joined, split_classes
from splitpoint.datasets.registry import MODAL
from splitpoint.errors import SettingsError

__all__ = ["MODAL", "Input", "ModalRows", "ModalSplits", "joined", "split_classes", "splits"]


def splits(name: str, seed: int = 0) -> ModalSplits:
    """The parts of a set of `MODAL`; what its files do not say of the split depends on `seed` alone.

    A set that is missing is a DataError that says where its files must lie or what to do.
    """
    if name not in MODAL:
        raise SettingsError(f"Expected a set with several modalities among {', '.join(MODAL)}, but got {name!r}.")
    entry = MODAL[name]
    path = locate(entry.path)
    if path is None:
        raise missing(entry.path, entry.by_hand)
    return entry.reader(entry, path, seed)
