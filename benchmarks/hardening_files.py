"""What becomes of saved predictors under flipped bits, kills in the middle of a save, and wrappers of the base model.

    python benchmarks/hardening.py --only files

Flipped bits: one bit of a saved file, at a random place, in turn for several kinds of predictor; the file is refused in
one sentence or predicts to the last bit what it did. Kills: a process saves one predictor or the other over the same
file, over and over, and is killed at a random moment; the file then is one of the two, and after the next save there is
nothing beside it. Wrappers: fitted on the plain network and loaded on the wrapped one, and the other way round; and one
that multiplies the inputs, which has to be refused.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import splitpoint as sp
from hardening_figures import Figure
from splitpoint.baselines import METHODS
from splitpoint.predictor import Predictor

FLIPS, KILLS = 1_000, 30


class Net(nn.Module):
    """A small network with a layer for each of two modalities."""

    def __init__(self, outputs: int, width: int = 6) -> None:
        super().__init__()
        self.left, self.right, self.fc = nn.Linear(3, width), nn.Linear(3, width), nn.Linear(2 * width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of the rows."""
        return self.fc(torch.cat([self.left(x).relu(), self.right(-x).relu()], 1))  # type: ignore[no-any-return]


class Around(nn.Module):
    """A wrapper that multiplies the inputs."""

    def __init__(self, net: nn.Module, scale: float = 1.0) -> None:
        super().__init__()
        self.net, self.scale = net, scale

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of the rows."""
        return self.net(self.scale * x)  # type: ignore[no-any-return]


def figures(quick: bool) -> list[Figure]:
    """The promises about saved files, on a tenth of the cases if `quick`."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        return [
            flipped(Path(folder), FLIPS // 10 if quick else FLIPS),
            killed(Path(folder), KILLS // 10 if quick else KILLS),
            *wrapped(Path(folder)),
        ]


def rows(seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (60, 3), numbers (60, 1) and labels (60,)."""
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(seed))
    return x, x.sum(1, keepdim=True).sin(), (x[:, 0] > 0).long() + (x[:, 1] > 1).long()


def saved_kinds() -> dict[str, tuple[Predictor[Any], Any]]:
    """Predictors of several kinds, and what `load` needs beside the file."""
    torch.manual_seed(0)
    x, number, label = rows()
    held_out = rows(2)
    one, three = Net(1), Net(3)
    short: dict[str, Any] = {"progress": False}
    found: dict[str, tuple[Predictor[Any], Any]] = {
        "regression": (sp.SplitPointRegressor(epochs=2).fit(one, (x, number), **short), one),
        "classification": (
            sp.SplitPointClassifier(epochs=2).fit(three, (x, label), calibration=(x, held_out[2]), **short),
            three,
        ),
        "laplace": (METHODS["laplace"].method().fit(one, (x, number), **short), one),
        "agreement": (sp.Agreement(branches={"a": "left", "b": "right"}).fit(three, (x, label), **short), three),
    }
    ensemble: Any = METHODS["deep_ensemble"].method
    found["ensemble"] = ensemble(epochs=2, members=2).fit(lambda: Net(1), (x, number), **short), lambda: Net(1)
    return found


def numbers(predictor: Predictor[Any]) -> dict[str, Tensor]:
    """What a predictor says about some rows."""
    found = predictor(rows(3)[0])
    return {name: value for name, value in vars(found).items() if isinstance(value, Tensor)}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether all numbers are the same to the last bit; those that are unknown (NaN) in both."""
    return one.keys() == other.keys() and all(
        torch.equal(value.nan_to_num(), other[name].nan_to_num()) for name, value in one.items()
    )


def flipped(folder: Path, count: int) -> Figure:
    """Flip one bit of a file at a time."""
    dice, path = random.Random(0), folder / "flipped.safetensors"
    kinds, holds, refused, worst = saved_kinds(), 0, 0, ""
    files = {}
    for name, (predictor, _) in kinds.items():
        predictor.save(path)
        files[name] = path.read_bytes()
    for number in range(count):
        name = list(kinds)[number % len(kinds)]
        predictor, start = kinds[name]
        damaged = bytearray(files[name])
        bit = dice.randrange(8 * len(damaged))
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            fine = same(numbers(sp.load(path, start)), numbers(predictor))
            worst = worst if fine else f"{name}, bit {bit}: another prediction"
        except sp.StorageError as error:
            fine, refused = "\n" not in str(error), refused + 1
        except BaseException as error:  # a crash of the reader is what is looked for
            fine, worst = False, f"{name}, bit {bit}: {type(error).__name__}"
        holds += fine
    path.unlink()
    said = worst or f"{refused:,} refused, the others predict the same"
    return Figure("a flipped bit of a saved file is refused or harmless", holds, count, said)


def killed(folder: Path, count: int) -> Figure:
    """Kill a process that saves."""
    dice, place = random.Random(0), folder / "kills"
    place.mkdir()
    path = place / "uq.safetensors"
    torch.manual_seed(0)
    x, number, _ = rows()
    model = Net(1, width=256)
    kinds = [sp.SplitPointRegressor(level, epochs=1).fit(model, (x, number), progress=False) for level in (0.5, 0.9)]
    wanted = [numbers(kind) for kind in kinds]
    kinds[0].save(path)
    holds, drafts, worst = 0, 0, ""
    for kill in range(count):
        child = os.fork()
        if child == 0:
            turn = kill
            while True:
                turn += 1
                kinds[turn % 2].save(path)
        time.sleep(0.05 * dice.random())
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        drafts += len(list(place.iterdir())) - 1
        fine = any(same(numbers(sp.load(path, model)), own) for own in wanted)
        worst = worst if fine else f"kill {kill}: neither file"
        kinds[kill % 2].save(path)
        left = [found.name for found in place.iterdir() if found != path]
        worst = f"kill {kill}: {left[0]} is left" if left else worst
        holds += fine and not left
    said = worst or f"{drafts} drafts were left, and gone after the next save"
    return Figure("a killed save leaves the old or the new file, and no draft for long", holds, count, said)


def wrapped(folder: Path) -> list[Figure]:
    """Load on wrapped networks what was fitted on plain ones, and back."""
    store = folder / "group"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    wrappers: dict[str, Callable[[nn.Module], nn.Module]] = {
        "compiled": lambda net: torch.compile(net, backend="eager"),  # type: ignore[dict-item, return-value]
        "DataParallel": nn.DataParallel,
        "DistributedDataParallel": lambda net: nn.parallel.DistributedDataParallel(net),
        "own": Around,
    }
    x, number, _ = rows()
    path, holds, worst, refused = folder / "wrapped.safetensors", 0, "", 0

    def fit(model: nn.Module) -> Predictor[Any]:
        return sp.SplitPointRegressor(epochs=1).fit(model, (x, number), progress=False)

    for name, wrap in wrappers.items():
        plain = Net(1)
        other = wrap(plain)
        wanted = numbers(fit(plain))
        for on, onto in ((plain, other), (other, plain)):
            fit(on).save(path)
            try:
                fine = same(numbers(sp.load(path, onto)), wanted)
            except sp.StorageError as error:
                fine, worst = False, f"{name}: {error}"
            holds += fine
    plain = Net(1)
    scaled = Around(plain, 255.0)
    for on, onto in ((plain, scaled), (scaled, plain)):
        fit(on).save(path)
        try:
            sp.load(path, onto)
        except sp.StorageError:
            refused += 1
    torch.distributed.destroy_process_group()
    return [
        Figure("fitted on a network, loaded on the wrapped one, and back", holds, 2 * len(wrappers), worst or "-"),
        Figure("another scale of the inputs is refused, both ways", refused, 2, "-"),
    ]
