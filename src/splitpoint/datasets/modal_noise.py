"""Noise laws for rows with several modalities: LUMA's three, and a modality that lies or is missing.

LUMA (Bezirganyan et al., SIGIR 2025) makes a set less diverse, switches labels, or adds noise to the inputs; the laws
here are our own code and work on any `ModalRows`. Every law is a function of its arguments alone, and what it does to
one modality does not depend on which others it is asked to change.

Distances are between features. LUMA takes those of large networks (VGG-11, wav2vec 2.0, BERT); `features` takes any,
and without it simple ones serve (`plain_features`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint.datasets import image_noise, sounds, text_noise
from splitpoint.datasets.modal_rows import Input, ModalRows, chosen
from splitpoint.errors import SettingsError, ShapeError

Kind: TypeAlias = Literal["image", "sound", "text", "vector"]

COMPACTNESS = 10.0
"""Power of the distance to the centre of a class by which an input is less likely to be drawn, as in LUMA."""

NEAREST = 5
"""Rows of a class whose mean distance is the distance to the class, as in LUMA."""

RATIOS = ((15.0, 20.0), (10.0, 15.0), (3.0, 10.0), (0.0, 3.0), (-3.0, 0.0))
"""Least and largest dB that a sound is above its background, by severity; LUMA's is 3 to 10."""

SPREADS = (0.25, 0.5, 1.0, 1.5, 2.0)
"""Standard deviations of the noise on vectors, in those of their columns, by severity."""

WORDS = 512
"""Numbers that words are hashed to."""


# LUMA's laws


def diversity(
    rows: ModalRows,
    share: float = 0.7,
    *,
    modalities: Sequence[str] | None = None,
    features: Mapping[str, Tensor] | None = None,
    seed: int = 0,
) -> ModalRows:
    """Less diverse rows: in every modality each class loses the `share` of its inputs, mostly far from its centre.

    Which inputs stay is drawn without replacement by ``1 / (d^10 + 1e-6)``, where d is the distance to the mean of the
    class over the mean distance (LUMA, where d is the distance itself). A row whose input is lost gets one that stayed
    in another row of its class: there are as many rows as before, and groups are those of the rows. LUMA has a larger
    pool and draws others instead of repeating some; it also keeps the most spread of ten draws, here there is one.
    """
    _check_share(share)
    given = _given(rows, features)
    found = rows
    for name, generator in _changed(rows, modalities, seed):
        space = _features(rows, name, given)
        sources = torch.arange(len(rows))
        for label in rows.labels.unique().tolist():
            places = (rows.labels == label).nonzero()[:, 0]
            sources[places] = places[_compact(space[places].double(), share, generator)]
        found = found.having(name, chosen(rows.inputs[name], sources))
    return found


def _compact(space: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """For every row of a class the place of the row whose input it gets."""
    count = len(space)
    distance = torch.linalg.vector_norm(space - space.mean(0), dim=1)
    distance = distance / distance.mean().clamp(min=1e-12)
    kept = torch.multinomial(
        1 / (distance**COMPACTNESS + 1e-6), max(1, count - round(share * count)), generator=generator
    )
    drawn = kept[torch.randint(len(kept), (count,), generator=generator)]
    drawn[kept] = kept
    return drawn


def label(
    rows: ModalRows, share: float = 0.3, *, features: Mapping[str, Tensor] | None = None, seed: int = 0
) -> ModalRows:
    """Wrong labels: the `share` of the rows, drawn at random, gets the label of the other class that is nearest.

    The distance to a class is the mean of those to the 5 nearest rows of it (LUMA), in the features of all modalities
    side by side, each scaled to the same mean square. A row has one label, switched once. LUMA switches the labels of
    every modality by themselves and puts the tables side by side by the switched ones, so that not even these agree.
    """
    _check_share(share)
    given = _given(rows, features)
    classes = rows.labels.unique()
    count = round(share * len(rows))
    if count == 0:
        return rows
    if len(classes) < 2:
        raise SettingsError(f"Expected rows of two classes or more to switch labels between, but got {len(classes)}.")
    switched = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:count]
    space = torch.cat([_scaled(_features(rows, name, given)) for name in rows.modalities], 1)
    labels = rows.labels.clone()
    for part in switched.split(256):
        distance = torch.cdist(space[part], space)
        to_class = torch.stack([_nearest(distance[:, rows.labels == each]) for each in classes.tolist()], 1)
        to_class[rows.labels[part][:, None] == classes] = torch.inf
        labels[part] = classes[to_class.argmin(1)]
    return replace(rows, labels=labels)


def _nearest(distance: Tensor) -> Tensor:
    return distance.topk(min(NEAREST, distance.shape[1]), 1, largest=False).values.mean(1)


def _scaled(space: Tensor) -> Tensor:
    space = space.float() - space.float().mean(0)
    return space / space.square().sum(1).mean().sqrt().clamp(min=1e-12)


def sample(
    rows: ModalRows,
    share: float = 1.0,
    *,
    modalities: Sequence[str] | None = None,
    severity: int = 3,
    kinds: Mapping[str, Literal["image", "sound"]] | None = None,
    seed: int = 0,
) -> ModalRows:
    """Noisy inputs: in every modality the `share` of the rows, drawn at random, has noise of a `severity` of 1 to 5.

    An image has one of the corruptions of `image_noise`, a sound another row's sound of another class in its background
    (LUMA: a clip of ESC-50), a text one kind of mistake of `text_noise`, a vector normal noise in shares of the spread
    of each column in these rows. Maps with one channel are taken for sounds and others for images; `kinds` says of maps
    by name what they are instead.
    """
    _check_share(share)
    if severity not in range(1, image_noise.SEVERITIES + 1):
        raise SettingsError(f"Expected a severity of 1 to {image_noise.SEVERITIES}, but got {severity}.")
    known = {name: _map_kind(rows, name, kind) for name, kind in ({} if kinds is None else kinds).items()}
    found = rows
    for name, generator in _changed(rows, modalities, seed):
        places = torch.randperm(len(rows), generator=generator)[: round(share * len(rows))].sort().values
        law = _LAWS[known.get(name) or kind_of(rows.inputs[name])]
        found = found.having(name, law(rows, name, places, severity, generator))
    return found


def kind_of(given: Input) -> Kind:
    """What an input is by its form: texts, vectors (N, D), sounds (N, 1, H, W) or images (N, C, H, W)."""
    if not isinstance(given, Tensor):
        return "text"
    if given.ndim == 2:
        return "vector"
    if given.ndim == 4:
        return "sound" if given.shape[1] == 1 else "image"
    raise ShapeError(
        f"Expected texts, vectors (N, D) or maps (N, C, H, W), but got a tensor of shape {tuple(given.shape)}."
    )


def _map_kind(rows: ModalRows, name: str, kind: Kind) -> Kind:
    if kind not in ("image", "sound") or kind_of(rows.of(name)) not in ("image", "sound"):
        raise SettingsError(
            f"Expected kinds to say 'image' or 'sound' of modalities that are maps, but got {kind!r} for {name}, "
            f"which is of kind {kind_of(rows.of(name))!r}; leave it out."
        )
    return kind


def _noisy_images(rows: ModalRows, name: str, places: Tensor, severity: int, generator: torch.Generator) -> Input:
    images = _tensor(rows, name).clone()
    images[places] = image_noise.corrupted(images[places], severity, generator)
    return images


def _noisy_sounds(rows: ModalRows, name: str, places: Tensor, severity: int, generator: torch.Generator) -> Input:
    found = _tensor(rows, name).clone()
    least, largest = RATIOS[severity - 1]
    ratio = least + (largest - least) * torch.rand(len(places), generator=generator)
    background = found[_of_another_class(rows.labels, places, generator)]
    found[places] = sounds.with_background(found[places], background, ratio)
    return found


def _noisy_texts(rows: ModalRows, name: str, places: Tensor, severity: int, generator: torch.Generator) -> Input:
    random = Random(int(torch.randint(2**62, (), generator=generator)))
    texts = list(rows.inputs[name])
    for place in places.tolist():
        texts[place] = text_noise.spoilt(str(texts[place]), severity, random)
    return tuple(map(str, texts))


def _noisy_vectors(rows: ModalRows, name: str, places: Tensor, severity: int, generator: torch.Generator) -> Input:
    vectors = _tensor(rows, name).clone()
    spread = SPREADS[severity - 1] * vectors.std(0, correction=0)
    vectors[places] += spread * torch.randn(len(places), vectors.shape[1], generator=generator)
    return vectors


_LAWS: dict[Kind, Callable[[ModalRows, str, Tensor, int, torch.Generator], Input]] = {
    "image": _noisy_images,
    "sound": _noisy_sounds,
    "text": _noisy_texts,
    "vector": _noisy_vectors,
}


# A modality that lies, or is missing


def conflict(rows: ModalRows, modality: str, seed: int = 0) -> ModalRows:
    """Rows whose `modality` is of a row of another class, drawn evenly; labels stay those of the other modalities."""
    given = rows.of(modality)
    sources = _of_another_class(rows.labels, torch.arange(len(rows)), _generator(modality, seed))
    return rows.having(modality, chosen(given, sources))


def missing(rows: ModalRows, modality: str) -> ModalRows:
    """The rows without one `modality`: it is not among their inputs."""
    rows.of(modality)
    left = {name: given for name, given in rows.inputs.items() if name != modality}
    if not left:
        raise SettingsError(f"Expected rows with another modality than {modality}, but got rows with no other.")
    return replace(rows, inputs=left)


def _of_another_class(labels: Tensor, places: Tensor, generator: torch.Generator) -> Tensor:
    """For each of the `places` a row of another class, every such row with the same chance."""
    order = labels.argsort(stable=True)
    classes, counts = labels.unique(return_counts=True)
    if len(classes) < 2 and len(places):
        raise SettingsError(f"Expected rows of two classes or more to exchange inputs, but got {len(classes)}.")
    own = torch.searchsorted(classes, labels[places])
    first = counts.cumsum(0) - counts
    others = len(labels) - counts[own]
    drawn = (torch.rand(len(places), generator=generator, dtype=torch.float64) * others).long().clamp(max=others - 1)
    return order[torch.where(drawn >= first[own], drawn + counts[own], drawn)]


# What the laws share


def plain_features(given: Input) -> Tensor:
    """Simple features (N, D): maps of at most 8 x 8, vectors with columns of one spread, counts of hashed words."""
    if not isinstance(given, Tensor):
        counts = torch.zeros(len(given), WORDS)
        for row, text in enumerate(given):
            for word in text.lower().split():
                counts[row, zlib.crc32(word.encode()) % WORDS] += 1
        return F.normalize(counts)
    if given.ndim == 4:
        return F.adaptive_avg_pool2d(given, (min(8, given.shape[2]), min(8, given.shape[3]))).flatten(1)
    vectors = given.flatten(1)
    spread = vectors.std(0, correction=0)
    return vectors / torch.where(spread > 0, spread, 1.0)


def _given(rows: ModalRows, features: Mapping[str, Tensor] | None) -> Mapping[str, Tensor]:
    """The features that were given, each of a modality that there is and with a row for each of the rows."""
    for name, found in ({} if features is None else features).items():
        rows.of(name)
        if found.ndim != 2 or len(found) != len(rows):
            raise ShapeError(
                f"Expected features of {name} of shape ({len(rows)}, D), but got {tuple(found.shape)}; "
                "give a row for each."
            )
    return features or {}


def _features(rows: ModalRows, name: str, given: Mapping[str, Tensor]) -> Tensor:
    return given[name] if name in given else plain_features(rows.inputs[name])


def _tensor(rows: ModalRows, name: str) -> Tensor:
    given = rows.inputs[name]
    if not isinstance(given, Tensor):
        raise ShapeError(f"Expected {name} to be a tensor, but got texts.")
    return given


def _changed(rows: ModalRows, modalities: Sequence[str] | None, seed: int) -> Iterator[tuple[str, torch.Generator]]:
    """The modalities to change, all of them by default, each with a generator of its own."""
    names = rows.modalities if modalities is None else (modalities,) if isinstance(modalities, str) else modalities
    for name in names:
        rows.of(name)
    return ((name, _generator(name, seed)) for name in names)


def _generator(name: str, seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))


def _check_share(share: float) -> None:
    if not 0 <= share <= 1:
        raise SettingsError(f"Expected a share in [0, 1], but got {share}; give a share of the rows.")
