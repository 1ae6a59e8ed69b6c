"""A late-fusion network on images, sounds and texts: its scores with all branches read, with one, and lacking one.

    python benchmarks/branches.py [--seeds 3] [--epochs 20]

Data are `three_modal_50.npz` in a folder of `SPLITPOINT_DATA`: 42 classes to learn, 8 others are out of distribution
(OOD). The logits of three networks are averaged and trained with Adam at 1e-3, batches of 64; a fifth of the recordings
of the training part calibrates. OOD rows are found by `support`, errors by `total`, and by the entropy of the network's
own softmax.
"""

from __future__ import annotations

import argparse
import zlib
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splitpoint import SplitPointClassifier
from splitpoint.consistency import entropy
from splitpoint.datasets.entry import find
from splitpoint.metrics import auroc, ece
from splitpoint.prediction import ClassificationPrediction
from splitpoint.predictor import Predictor

MODALITIES = ("image", "audio", "text")
WORDS = 512


class Late(nn.Module):
    """The mean of the logits of the modalities that are given."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.image = nn.Sequential(
            *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(2304, classes)),
        )
        self.audio = nn.Sequential(
            *(nn.Conv2d(1, 16, 5, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(512, classes)),
        )
        self.text = nn.Sequential(nn.Linear(WORDS, 256), nn.ReLU(), nn.Linear(256, classes))

    def forward(self, image: Tensor | None = None, audio: Tensor | None = None, text: Tensor | None = None) -> Tensor:
        """Logits (N, K)."""
        pairs = ((self.image, image), (self.audio, audio), (self.text, text))
        return torch.stack([net(given) for net, given in pairs if given is not None]).mean(0)


class Rows(NamedTuple):
    """Inputs by modality, labels, and which recording a row's sound is of."""

    image: Tensor
    audio: Tensor
    text: Tensor
    label: Tensor
    clip: np.ndarray

    def at(self, chosen: np.ndarray) -> Rows:
        """Some of the rows."""
        return Rows(*(values[chosen] for values in self))


def parts() -> tuple[Rows, Rows, Rows]:
    """Rows to learn, to test on, and rows out of distribution."""
    with np.load(find("three_modal_50.npz"), allow_pickle=False) as stored:
        audio = torch.from_numpy(stored["audio"]).float()[:, None]
        text = torch.zeros(len(audio), WORDS)
        for row, words in zip(text, stored["text"], strict=True):
            for word in str(words).lower().split():
                row[zlib.crc32(word.encode()) % WORDS] += 1
        image = torch.from_numpy(stored["image"]).permute(0, 3, 1, 2).float() / 255
        label, split = torch.from_numpy(stored["y"]).long(), stored["split"]
        every = Rows(image, (audio - audio.mean()) / audio.std(), F.normalize(text), label, stored["clip"])
    learned, tested, ood = (every.at(split == number) for number in range(3))
    return learned, tested, ood


def trained(rows: Rows, epochs: int, seed: int) -> Late:
    """The network after so many passes."""
    torch.manual_seed(seed)
    network = Late(int(rows.label.max()) + 1)
    optimiser = torch.optim.Adam(network.parameters(), 1e-3, weight_decay=1e-4)
    for _ in range(epochs):
        for chosen in torch.randperm(len(rows.label)).split(64):
            image, audio, text, label = (values[chosen] for values in rows[:4])
            optimiser.zero_grad()
            F.cross_entropy(network(image, audio, text), label).backward()
            optimiser.step()
    return network.eval()


def figures(
    uq: Predictor[ClassificationPrediction], tested: Rows, ood: Rows, lacking: int | None = None
) -> list[float]:
    """Accuracy, AUROC of OOD rows and of errors by score and by entropy, ECE of ours and of softmax, flags."""
    own, other = (
        uq.predict([tuple(None if place == lacking else x for place, x in enumerate(rows[:3]))])
        for rows in (tested, ood)
    )
    plain, ood_plain = (entropy(found.base_probs, 1) for found in (own, other))
    wrong, guess = own.label != tested.label, own.base_probs.argmax(1)
    missed = guess != tested.label
    share = own.base_probs.amax(1)
    bins = (share * 15).long().clamp(max=14)
    raw = sum(float((share - (~missed).float())[bins == number].sum().abs()) for number in range(15)) / len(share)
    return [
        float((~wrong).double().mean()),
        auroc(own.support, other.support),
        auroc(plain, ood_plain),
        auroc(own.total[~wrong], own.total[wrong]),
        auroc(plain[~missed], plain[missed]),
        ece(own, tested.label),
        raw,
        float(own.flagged.double().mean()),
        float(other.flagged.double().mean()),
    ]


def main() -> None:
    """Print a table of means over seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    learned, tested, ood = parts()
    found: dict[str, list[list[float]]] = {}
    for seed in range(options.seeds):
        clips = np.random.default_rng(seed).permutation(np.unique(learned.clip))
        held_out = np.isin(learned.clip, clips[: len(clips) // 5])
        train, calibration = learned.at(~held_out), learned.at(held_out)
        network = trained(train, options.epochs, seed)
        kinds = {"all branches": (None, calibration), "all, not calibrated": (None, None)}
        kinds |= {"text only": ("text.2:input", calibration)}
        for kind, (layer, rows) in kinds.items():
            given = None if rows is None else rows[:4]
            uq = SplitPointClassifier(layer=layer).fit(network, train[:4], calibration=given, progress=False)
            uq.set_threshold(calibration[:4])
            found.setdefault(kind, []).append(figures(uq, tested, ood))
            for place, name in enumerate(MODALITIES if kind == "all branches" else ()):
                found.setdefault(f"without {name}", []).append(figures(uq, tested, ood, place))
    names = ("read", "accuracy", "OOD", "by entropy", "errors", "by entropy", "ECE", "softmax", "flags", "OOD")
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for kind, runs in found.items():
        mean, low, high = (np.array(runs).mean(0), np.array(runs).min(0), np.array(runs).max(0))
        print(f"| {kind} | {' | '.join(f'{value:.3f}' for value in mean)} |")
        lead = np.array(runs)[:, 1] - np.array(runs)[:, 2]
        print(f"  {kind}: lead at OOD rows {lead.min():+.3f} to {lead.max():+.3f}; ECE {low[5]:.3f} to {high[5]:.3f}")


if __name__ == "__main__":
    main()
