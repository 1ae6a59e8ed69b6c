"""What a method is: frozen settings whose `fit` returns a predictor, from a model, a factory or recorded rows."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from splitpoint.batches import Data, first_batch, output_tensor
from splitpoint.checks import warn_of
from splitpoint.errors import SettingsError, ShapeError
from splitpoint.frozen import frozen
from splitpoint.groups import Groups, group_ids
from splitpoint.layer_setting import LayerSpec, layer_name
from splitpoint.networks import Factory, NetworkTraining, train_networks
from splitpoint.posthoc import PostHocPredictor
from splitpoint.predictor import Predictor
from splitpoint.recording import Recording, Source, record
from splitpoint.settings import settle
from splitpoint.tasks import Task, TaskName
from splitpoint.wrappers import unwrapped

R = TypeVar("R", bound=Predictor[Any])
P = TypeVar("P", bound=PostHocPredictor[Any])
M = TypeVar("M", bound="Method[Any]")


class Given(NamedTuple):
    """What several fits start from, one entry of every list for each: models or functions that build them, and data.

    Of data whose rows belong together, the numbers (N,) of the groups of their rows.
    """

    starts: Sequence[nn.Module | Factory]
    data: Sequence[Data]
    calibration: Sequence[Data] | None
    seeds: Sequence[int]
    progress: bool
    groups: Sequence[Tensor | None] | None = None
    calibration_groups: Sequence[Tensor | None] | None = None


class GivenRows(NamedTuple):
    """The same once the rows of every model are recorded; `data` are what they were recorded from, where known.

    `groups` are those of the rows of the data; rows that were recorded have them as a column.
    """

    rows: Sequence[Recording]
    calibration: Sequence[Recording] | None
    seeds: Sequence[int]
    progress: bool
    data: Sequence[Data] | None = None
    groups: Sequence[Tensor | None] | None = None


@dataclass(frozen=True, kw_only=True)
class Method(ABC, Generic[R]):
    """Settings that all methods share.

    Attributes:
        output_key: which entry of the model's output is the prediction, where it has several.
        rows_per_call: rows that go through the model at a time when the data do not come in batches.
    """

    tasks: ClassVar[tuple[TaskName, ...]]
    """What the method can do."""

    output_key: str | int | None = None
    rows_per_call: int = 256

    def __new__(cls: type[M], *_args: Any, **settings: Any) -> M:
        """Refuse settings that the method does not have."""
        known = [field.name for field in dataclasses.fields(cls) if field.init]
        unknown = [name for name in settings if name not in known]
        if unknown:
            raise SettingsError(
                f"Expected settings of {cls.__name__} among {', '.join(known)}, but got {', '.join(unknown)}."
            )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        settle(self)
        if self.rows_per_call < 1:
            raise SettingsError(f"Expected rows_per_call >= 1, but got {self.rows_per_call}.")

    @property
    @abstractmethod
    def _task(self) -> Task:
        """How targets and outputs are read, once the task is decided."""

    @property
    def _undecided(self) -> bool:
        """Whether the task depends on the data; most methods have one task only."""
        return False

    def _decided(self: M, output: Tensor, target: Tensor) -> M:  # noqa: ARG002
        """The same settings with the task decided by a first batch."""
        return self

    def _of_task(self: M, task: Task) -> M:  # noqa: ARG002
        """The same settings with the given task."""
        return self

    def _check_calibration(self, given: bool) -> None:
        """Refuse settings that need calibration data when none are given."""

    def fit(
        self,
        model_or_factory: nn.Module | Factory,
        data: Data,
        *,
        groups: Groups | None = None,
        calibration: Data | None = None,
        calibration_groups: Groups | None = None,
        seed: int = 0,
        progress: bool = True,
    ) -> R:
        """Fit the method.

        Args:
            model_or_factory: a trained model, or a function that builds an untrained one. A post-hoc method leaves a
                model bit for bit as it was, and trains one first when it gets a function; a method that trains
                networks of its own takes a model as a pattern, of which it trains fresh copies.
            data: what the model was trained on, or more of the same: a DataLoader, an iterable of batches, a Dataset
                or a pair (X, y).
            groups: a number or name for each row of the data, in their order, equal where rows belong together
                (patients, wells, days): whatever is left out, to see how new rows fare, is left out with its group.
                Positions of maps and sequences belong to their row by themselves. Methods that leave nothing out have
                no use for them.
            calibration: data that the model was not trained on, for conformal intervals and calibrated probabilities.
            calibration_groups: the same for its rows: conformal factors then hold for new groups, on average over
                these, not for new rows of the same ones.
            seed: of everything random.
            progress: whether to show progress bars.
        """
        fitted = self.fit_many(
            [model_or_factory],
            [data],
            groups=None if groups is None else [groups],
            calibration=None if calibration is None else [calibration],
            calibration_groups=None if calibration_groups is None else [calibration_groups],
            seeds=[seed],
            progress=progress,
        )[0]
        warn_of(fitted.checks)
        return fitted

    def fit_many(
        self,
        models_or_factories: Sequence[nn.Module | Factory],
        data: Sequence[Data],
        *,
        groups: Sequence[Groups | None] | None = None,
        calibration: Sequence[Data] | None = None,
        calibration_groups: Sequence[Groups | None] | None = None,
        seeds: Sequence[int] | None = None,
        progress: bool = True,
    ) -> list[R]:
        """Fit on several data sets at once, as one stack where that is possible.

        With equal numbers of rows each ends up as `fit` alone would leave it, at a fraction of the cost. Arguments as
        in `fit`, in lists of one length; seeds are 0, 1, 2, ... by default.
        """
        seeds = range(len(data)) if seeds is None else seeds
        held_out = data if calibration is None else calibration
        starts = [unwrapped(start) if isinstance(start, nn.Module) else start for start in models_or_factories]
        counts = [len(starts), len(data), len(held_out), len(seeds)]
        if len(set(counts)) > 1 or not data:
            raise SettingsError(
                "Expected as many models, data sets, calibration sets and seeds, but got "
                f"{counts[0]}, {counts[1]}, {counts[2]} and {counts[3]}."
            )
        self._check_calibration(calibration is not None)
        if calibration is None and calibration_groups is not None:
            raise SettingsError("Expected calibration data with calibration_groups=, but got none; pass calibration=.")
        owners = [_numbered(own, len(data)) for own in (groups, calibration_groups)]
        with torch.inference_mode(False), torch.enable_grad():
            return self._fit_many(Given(starts, data, calibration, seeds, progress, *owners))

    @abstractmethod
    def _fit_many(self, given: Given) -> list[R]:
        """Predictors, one for each data set."""

    @abstractmethod
    def fit_rows(
        self, recording: Recording, *, calibration: Recording | None = None, seed: int = 0, progress: bool = True
    ) -> R:
        """Fit on rows that were recorded before, by `record` or from features on disk (`Recording.of`).

        Args:
            recording: training rows.
            calibration: rows that the model was not trained on.
            seed: of everything random.
            progress: whether to show progress bars.
        """


@dataclass(frozen=True, kw_only=True)
class PostHoc(Method[P]):
    """A method that reads features and outputs of a trained model, in one pass over the data, and learns from them.

    Attributes:
        positions: most positions used of one map or sequence when something is fitted on rows.
        training: how a network is trained when `fit` gets a function that builds one; None for the defaults of
            `NetworkTraining`.
    """

    positions: int = 256
    training: NetworkTraining | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions < 1:
            raise SettingsError(f"Expected positions >= 1, but got {self.positions}.")

    @abstractmethod
    def _fit_recorded(self, given: GivenRows) -> list[P]:
        """Predictors from the recorded rows of every model, with the task decided."""

    def record(self, model: nn.Module, data: Data, *, groups: Groups | None = None, progress: bool = True) -> Recording:
        """Run the frozen model once over the data and keep the rows that `fit_rows` takes; `groups` as in `fit`."""
        owners = None if groups is None else group_ids(groups)
        plain = unwrapped(model)
        return self._decided_for(plain, data)._record(plain, data, "train", progress, groups=owners)

    def fit_rows(
        self, recording: Recording, *, calibration: Recording | None = None, seed: int = 0, progress: bool = True
    ) -> P:
        """See `Method`. A recording without a model gives a predictor with `predict_rows` only."""
        check_recordings(recording, calibration)
        self._check_calibration(calibration is not None)
        if recording.task.name not in self.tasks:
            raise SettingsError(
                f"Expected rows of {' or '.join(self.tasks)}, but got rows of {recording.task.name}; "
                "use a method of that task."
            )
        method, held_out = self._of_task(recording.task), None if calibration is None else [calibration]
        method._check_rows(recording)
        if calibration is not None:
            method._check_rows(calibration)
            if recording.widths != calibration.widths:
                raise ShapeError(
                    "Expected calibration rows with {} features and {} outputs as the training rows have, but got "
                    "{} and {}; record both at the same layer.".format(*recording.widths, *calibration.widths)
                )
        with torch.inference_mode(False), torch.enable_grad():
            predictor = method._fit_recorded(GivenRows([recording], held_out, [seed], progress))[0]
        return predictor.fitted_on(recording)

    def _check_rows(self, rows: Recording) -> None:
        """Refuse rows whose outputs or features were read in another way than these settings say."""
        if not self._task.reads_like(rows.task):
            raise SettingsError(
                f"Expected rows of {self._task}, but got rows of {rows.task}; give both the same output=."
            )
        if self._layer is None:
            return
        found = None if rows.tap is None else layer_name(rows.tap.model, rows.tap.spec)
        if rows.tap is None or layer_name(rows.tap.model, self._layer) != found:
            raise SettingsError(
                f"Expected rows of layer={self._layer!r}, but got rows of {found or 'no model'}; record them with the "
                "same layer=, or leave it out."
            )

    def _fit_many(self, given: Given) -> list[P]:
        models, progress = self._models(given), given.progress
        method = self._decided_for(models[0], given.data[0])
        folders = [f"{number}/" if len(models) > 1 else "" for number in range(len(models))]
        owners, held_owners = (own or [None] * len(models) for own in (given.groups, given.calibration_groups))
        parts = list(zip(models, given.data, folders, owners, strict=True))
        rows = [method._record(model, data, f"{to}train", progress, groups=own) for model, data, to, own in parts]
        held_out = None
        if given.calibration is not None and method._reads_calibration:
            more = zip(models, given.calibration, folders, rows, held_owners, strict=True)
            held_out = [
                method._record(model, data, f"{to}calibration", progress, own, of) for model, data, to, own, of in more
            ]
        predictors = method._fit_recorded(GivenRows(rows, held_out, given.seeds, progress, given.data, given.groups))
        for predictor, start, own in zip(predictors, given.starts, rows, strict=True):
            predictor.owns_base = not isinstance(start, nn.Module)
            predictor.fitted_on(own)
        return predictors

    @property
    def _layer(self) -> LayerSpec:
        """Where features are read; a setting of the methods that use them."""
        return None

    @property
    def _cache(self) -> Path | None:
        """Folder of recorded rows; a setting of the methods that can do with rows on disk."""
        return None

    @property
    def _reads_calibration(self) -> bool:
        """Whether the settings use calibration data that are given."""
        return True

    @property
    def _spectral_bound(self) -> float | None:
        """Largest spectral norm of the layers of networks that are trained from a factory."""
        return None

    def _models(self, given: Given) -> list[nn.Module]:
        """The trained models that are given, or networks that are trained now."""
        models = [model for model in given.starts if isinstance(model, nn.Module)]
        factories = [factory for factory in given.starts if not isinstance(factory, nn.Module)]
        if not all(map(callable, factories)):
            raise SettingsError(
                f"Expected the base model to be a torch.nn.Module, but got {type(factories[0]).__name__}."
            )
        if models and factories:
            raise SettingsError(
                "Expected either trained models or functions that build networks, but got both in one list; "
                "fit them apart."
            )
        if models:
            wanted = {"training": self.training, "spectral_norm": self._spectral_bound}
            for name in (name for name, value in wanted.items() if value is not None):
                raise SettingsError(
                    f"Expected a function that builds the network with {name}=, but got a trained one; pass the "
                    f"function, or leave {name}=None."
                )
            return models
        return train_networks(
            factories,
            given.data,
            given.seeds,
            self.training or NetworkTraining(),
            decide=lambda output, target: self._decided(output, target)._task,
            output_key=self.output_key,
            spectral_bound=self._spectral_bound,
            progress=given.progress,
        )

    def _decided_for(self: M, model: nn.Module, data: Data) -> M:
        """The same settings with the task decided by the first batch, where it is not."""
        if not self._undecided:
            return self
        batch = first_batch(data, self.rows_per_call).to(model)
        assert batch.target is not None
        with frozen(model) as view:
            return self._decided(output_tensor(view(*batch.args, **batch.kwargs), self.output_key), batch.target)

    def _source(self) -> Source:
        return Source(self._task, self._layer, self.output_key, self.rows_per_call, self.positions)

    def _record(
        self,
        model: nn.Module,
        data: Data,
        part: str,
        progress: bool,
        like: Recording | None = None,
        groups: Tensor | None = None,
    ) -> Recording:
        """Rows of a part of the data, read where those of `like` were, if it is given."""
        source, cache = self._source(), None if self._cache is None else self._cache / part
        if like is not None and like.tap is not None:
            source = replace(source, layer=like.tap.spec, context=bool(like.tap.context))
        label = part.split("/")[-1]
        return record(model, data, source, cache=cache, label=label, progress=progress, like=like, groups=groups)


def _numbered(groups: Sequence[Groups | None] | None, count: int) -> list[Tensor | None] | None:
    """Groups of every data set as numbers; an error where there are more or fewer sets of them."""
    if groups is None:
        return None
    if len(groups) != count:
        raise SettingsError(
            f"Expected groups of each of the {count} data sets, but got {len(groups)}; give None for those without."
        )
    return [None if own is None else group_ids(own) for own in groups]


def generators_for(seeds: Sequence[int]) -> list[torch.Generator]:
    """A generator for each seed, apart from the global state."""
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def check_recordings(recording: Any, calibration: Any) -> None:
    """Refuse to fit on what is no recording; None stands for no calibration rows."""
    for given in (recording, *([] if calibration is None else [calibration])):
        if not isinstance(given, Recording):
            raise SettingsError(
                f"Expected a Recording to fit on, but got {type(given).__name__}; make one with record(model, data) or "
                "Recording.of(task, features, outputs, targets)."
            )
