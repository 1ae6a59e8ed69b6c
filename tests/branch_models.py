"""Networks of several branches, and rows for them, that the tests of branches share."""

import torch
from torch import nn
from torch.nn import functional as F

WIDTHS = (4, 5, 6)
CLASSES = 3


def branch(inputs, hidden=8, outputs=CLASSES):
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


class Late(nn.Module):
    """Three branches, each of which may be missing, and a function of (net, their results) that fuses them."""

    def __init__(self, fuse=None, no_grad=False):
        super().__init__()
        self.image, self.audio, self.text = (branch(width) for width in WIDTHS)
        self.head = nn.Linear(3 * CLASSES, CLASSES)
        self.weights = nn.Parameter(torch.tensor([0.2, 0.5, 0.3]))
        self.fuse, self.no_grad = fuse or mean, no_grad

    def forward(self, image=None, audio=None, text=None):
        pairs = ((self.image, image), (self.audio, audio), (self.text, text))
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.no_grad):
            return self.fuse(self, [net(x) for net, x in pairs if x is not None])


def mean(_net, parts):
    return torch.stack(parts).mean(0)


def into_one(_net, parts):
    parts[0] += parts[1]
    parts[0] += parts[2]
    return parts[0]


def into_a_buffer(_net, parts):
    found = parts[0].new_zeros(len(parts[0]), 3 * CLASSES)
    for number, part in enumerate(parts):
        found[:, number * CLASSES : (number + 1) * CLASSES] = part
    return found


FUSIONS = {
    "mean": lambda _net, parts: (parts[0] + parts[1] + parts[2]) / 3,
    "sum": lambda _net, parts: sum(parts),
    "stacked mean": mean,
    "side by side": lambda _net, parts: torch.cat(parts, 1),
    "by weights": lambda net, parts: torch.einsum("m,mnk->nk", net.weights, torch.stack(parts)),
    "mean of probabilities": lambda _net, parts: torch.stack([part.softmax(1) for part in parts]).mean(0),
    "product of probabilities": lambda _net, parts: sum(F.log_softmax(part, 1) for part in parts).softmax(1),
    "in place": into_one,
    "into a buffer": into_a_buffer,
    "in a dict": lambda net, parts: {"logits": mean(net, parts)},
}


def inputs(rows=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(rows, width, generator=generator) for width in WIDTHS)


def labelled_rows(rows=240, seed=1, noise=0.6):
    """Inputs around a centre of their class, and labels."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(CLASSES, (rows,), generator=generator)
    centres = torch.randn(CLASSES, sum(WIDTHS), generator=torch.Generator().manual_seed(7))
    x = centres[label] + noise * torch.randn(rows, sum(WIDTHS), generator=generator)
    return (*x.split(WIDTHS, 1), label)


def trained(model, data, steps=60):
    *x, label = data
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(model(*x), label).backward()
        optimiser.step()
    optimiser.zero_grad()
    return model.eval()
