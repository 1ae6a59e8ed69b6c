"""Which networks can have copies that leave rows out, which of them are copied together, and how far copies came."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from splitpoint.batches import Data, item_of, labelled
from splitpoint.checks import Check
from splitpoint.errors import DataError, SettingsError
from splitpoint.frozen import frozen
from splitpoint.hooks import first_tensor
from splitpoint.networks.refit import COPIES, LeftOut, Refit, Retrain, reset_copy
from splitpoint.networks.surgery import not_resettable
from splitpoint.networks.training import in_memory, is_repeatable, rows_in
from splitpoint.recording import Recording, Source, record

MOST_OF_THEM = 0.6
"""Share of copies that must fit their rows as well as the given network for their answers to stand for its own."""


EPOCHS = 100
"""Passes over the rows that the training of a copy takes, roughly."""


class Prepared(NamedTuple):
    """A network whose copies can be trained.

    Attributes:
        recording: its rows, in the order of the columns.
        model: the network.
        columns: its data in memory, see `refit.in_memory`.
        groups: (N,) that the rows of its data belong to; None where each stands for itself.
    """

    recording: Recording
    model: nn.Module
    columns: dict[Any, Tensor]
    groups: Tensor | None = None


def prepared(
    recording: Recording,
    data: Data | None,
    source: Source,
    budget: float = math.inf,
    owners: Tensor | None = None,
) -> Prepared | DataError | SettingsError:
    """The data of a network in memory, or why copies of it cannot be trained on them, or had better not be.

    Args:
        recording: its recorded rows.
        data: what they were recorded from; None where that is not known.
        source: how rows are read.
        budget: most of ``COPIES * rows * multiplications for a row * EPOCHS``.
        owners: (N,) groups of the rows of the data.
    """
    tap = recording.tap
    if tap is None or data is None:
        return SettingsError(
            "Expected a network and its data for residuals='refit', but got recorded rows alone; call fit(model, "
            "data), or use another residuals=."
        )
    found = obstacle(tap.model)
    if found is not None:
        return found
    large = SettingsError("The network and its data are large: residuals='refit' takes its time.")
    rows = recording.table.rows
    most = budget / (COPIES * EPOCHS)
    if rows * sum(parameter.numel() for parameter in tap.model.parameters()) > most:
        return large
    columns = in_memory(data, tap.model, source.batch_size)
    if columns is None or min(rows, rows_in(columns)) < 2 * COPIES:
        return DataError(
            f"Expected at least {2 * COPIES} rows with targets that can be read again for residuals='refit', but "
            "got fewer, an iterator, or rows that do not form tensors; pass arrays, a Dataset or a DataLoader, or "
            "use another residuals=."
        )
    if budget < math.inf and rows_in(columns) * multiplications(tap.model, columns) > most:
        return large
    if owners is not None and not is_repeatable(data):
        return DataError(
            "Expected arrays or a TensorDataset for residuals='refit' with groups=, but got data that may come in "
            "another order when they are read again; pass arrays, or use another residuals=."
        )
    if not is_repeatable(data):  # rows in the order in which they were read now
        recording = record(
            tap.model, item_of(columns), source, cache=None, label="train", progress=False, like=recording
        )
    return Prepared(recording, tap.model, columns, owners)


def check_retrain(retrain: object, residuals: str, served: Sequence[str]) -> None:
    """Refuse a setting `retrain` that cannot be called, or that the `residuals` have no use for."""
    if retrain is None:
        return
    if not callable(retrain):
        raise SettingsError(
            f"Expected retrain to be a function of a network and rows, but got {type(retrain).__name__}; pass one that "
            "trains the network and returns it."
        )
    if residuals not in served:
        raise SettingsError(
            f"Expected residuals={' or '.join(map(repr, served))} with retrain=, but got {residuals!r}, for which no "
            "copies are trained; set residuals, or leave retrain out."
        )


def obstacle(model: nn.Module) -> SettingsError | None:
    """Why there are no reset copies of the network that know nothing of its weights; None where there are."""
    missing = not_resettable(model)
    if missing is not None:
        return SettingsError(
            f"Expected layers with reset_parameters for residuals='refit', but {missing} has none; give it one, "
            "pass calibration data, or use another residuals=."
        )
    try:
        blank = copy.deepcopy(model)
        for parameter in blank.parameters():
            parameter.detach().fill_(torch.nan)
        found = reset_copy(blank, 0).named_parameters()
    except Exception as error:  # whatever a network holds that cannot be copied
        return SettingsError(
            f"Expected a network that can be copied for residuals='refit', but got {type(error).__name__}; pass "
            "calibration data, or use another residuals=."
        )
    kept = [name for name, parameter in found if parameter.requires_grad and parameter.isnan().any()]
    if kept:
        return SettingsError(
            f"Expected reset_parameters to forget all weights for residuals='refit', but '{kept[0]}' stays; set it "
            "there, pass calibration data, or use another residuals=."
        )
    return None


def multiplications(model: nn.Module, columns: dict[Any, Tensor]) -> int:
    """Multiplications for one row, as far as layers tell: weights times the positions that they are applied at."""
    found = 0

    def count(module: nn.Module, _args: Any, output: Any) -> None:
        nonlocal found
        weights = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        shape = getattr(first_tensor(output), "shape", ())
        looked_up = isinstance(module, nn.Embedding | nn.EmbeddingBag)
        channels = 1 if isinstance(module, _ConvNd) else -1
        places = math.prod(shape[1:]) // shape[channels] if len(shape) > 1 and not looked_up else 1
        found += weights * places

    batch = next(labelled(item_of(columns), 1)).to(model)
    with frozen(model) as view:
        for module in view.modules():
            module.register_forward_hook(count)
        view(*batch.args, **batch.kwargs)
    return found


def groups(ready: Mapping[int, Prepared]) -> list[list[int]]:
    """Numbers of networks that can be copied into one stack: alike, with data of one shape."""
    found: dict[Any, list[int]] = {}
    for number, own in ready.items():
        found.setdefault((_looks(own.model), _shapes(own.columns)), []).append(number)
    return list(found.values())


def _looks(model: nn.Module) -> Any:
    """The layers of a network with their attributes, and the shapes of its weights."""
    layers = [
        (name, sorted((key, repr(value)) for key, value in vars(module).items() if key[0] != "_" and key != "training"))
        for name, module in model.named_modules()
    ]
    learning = [parameter.requires_grad for parameter in model.parameters()]
    return str(model), str(layers), str(learning), _shapes(model.state_dict())


def _shapes(tensors: Mapping[Any, Tensor]) -> tuple[Any, ...]:
    return tuple((name, tuple(own.shape), own.dtype, own.device) for name, own in tensors.items())


def refitted(
    ready: Sequence[Prepared], source: Source, seeds: Sequence[int], retrain: Retrain | None, progress: bool
) -> list[LeftOut]:
    """What copies of networks that are alike say of the rows that they have not seen; arguments as in `Refit`."""
    return Refit(
        models=[own.model for own in ready],
        arrays=[own.columns for own in ready],
        layouts=[own.recording.layout for own in ready],
        source=source,
        seeds=seeds,
        progress=progress,
        groups=[own.groups for own in ready],
    ).run(retrain=retrain)


def copies_check(reached: float) -> Check:
    """The verdict on the share of the copies that came to fit their rows as well as the given network."""
    if reached >= MOST_OF_THEM:
        return Check("copies", reached, "ok", "so many copies fit their rows as well as the network does.")
    advice = (
        f"only {reached:.0%} of the copies came to fit their rows as well as the network does, so their answers may "
        "not be like its own; train them by retrain= as the network was, or pass calibration data."
    )
    return Check("copies", reached, "warn", advice)
