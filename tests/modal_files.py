"""Small sets with several modalities in the true formats of the large ones, written into a folder."""

import numpy as np


def small_three_modal(path, classes=42, others=2, clips=2, **other):
    """Three windows of every clip: folds 1 to 4 train, fold 5 test; two takes of each source; then other classes.

    The image of a row has its number in its first pixel. `other` arrays are in place of its own.
    """
    rows = [
        (label, fold, source, take)
        for label in range(classes + others)
        for fold in range(1, 6)
        for source in range(clips)
        for take in "AB"
        for _ in range(3)
    ]
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (len(rows), 32, 32, 3), np.uint8)
    numbers = np.arange(len(rows))
    images[:, 0, 0, 0], images[:, 0, 0, 1] = numbers // 256, numbers % 256
    folds, labels = (np.array([row[place] for row in rows]) for place in (1, 0))
    arrays = {
        "image": images,
        "audio": random.integers(0, 256, (len(rows), 48, 48), np.uint8),
        "text": np.array([f"row {number} of {label}" for number, label in enumerate(labels)]),
        "y": labels.astype(np.uint8),
        "split": np.where(labels >= classes, 2, np.where(folds == 5, 1, 0)).astype(np.uint8),
        "clip": np.array([f"{fold}-{100 * label + source}-{take}-{label}.wav" for label, fold, source, take in rows]),
        **{f"{name}_names": np.array([f"{name}{n}" for n in range(classes + others)]) for name in ("image", "audio")},
        "text_names": np.array([f"text{n}" for n in range(classes + others)]),
    } | other
    np.savez(path, **arrays)
    return arrays


def small_views(path, classes=68, each=10, sizes=(4, 3, 2), **other):
    """Vectors of about 100 x class plus the number of the view; the first column of the first view is the row's own."""
    random = np.random.default_rng(1)
    labels = np.repeat(np.arange(classes), each).astype(np.uint8)
    views = {
        f"view{number}": (100 * labels[:, None] + number + random.normal(size=(len(labels), size))).astype(np.float32)
        for number, size in enumerate(sizes)
    }
    views["view0"][:, 0] = np.arange(len(labels))
    arrays = {"y": labels} | views | other
    path.parent.mkdir(exist_ok=True)
    np.savez(path, **{key: array for key, array in arrays.items() if array is not None})
    return arrays
