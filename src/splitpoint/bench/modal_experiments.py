"""How experiments with several modalities are set up: protocols, what can be asked for, what is published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from splitpoint.baselines import METHODS
from splitpoint.bench.fitting import POST_HOC
from splitpoint.bench.image_experiments import machine_options
from splitpoint.bench.modal_networks import CONVOLUTIONS, WIDTH, Shapes, late_fusion
from splitpoint.bench.modal_training import ModalSchedule
from splitpoint.bench.modal_trials import CONDITIONS, FUSED, MISSING, NOISY, ModalTrial, modal_trial
from splitpoint.bench.record import Record
from splitpoint.bench.suite import Option, Work
from splitpoint.datasets.modal import MODAL
from splitpoint.networks import Factory

AGREEMENT = "agreement"
"""Id of the probes of single modalities, which predict nothing and are no entry of the table of methods."""

CONTRASTS = (AGREEMENT, "rcml")
"""Methods that compare modalities: they need more than one, and have nothing to say where one is missing."""

DROPOUT = 0.3
"""Rate of the networks of MC dropout."""

DATASET, PUBLISHED_ENTROPY = "luma", "published"
"""The set of the published table, and its way of working out uncertainty, see `defective`."""


@dataclass(frozen=True)
class Setting:
    """What a protocol says where no option says otherwise.

    Attributes:
        width: channels of the first convolution.
        schedule: of all networks on images and sounds.
        views: of those on vectors alone, which cost little.
        members: of ensembles.
        passes: of MC dropout.
        annealing: share of the training in which RCML's divergence rises to its weight, which takes 50 epochs there.
        heads: settings of heads with the paper's recipe.
    """

    width: int
    schedule: ModalSchedule
    views: ModalSchedule
    members: int
    passes: int
    annealing: float
    heads: Mapping[str, Any]


AUTHORS = ModalSchedule(learning_rate=1e-2)

PROTOCOLS: dict[str, Setting] = {
    "short": Setting(
        8,
        ModalSchedule(learning_rate=3e-3, steps=190),
        ModalSchedule(learning_rate=3e-3, steps=1_000),
        3,
        10,
        1.0,
        {"width": 128, "epochs": 40, "batch_size": 256, "learning_rate": 1e-3},
    ),
    "paper": Setting(WIDTH, ModalSchedule(), ModalSchedule(), 10, 100, 50 / 300, {}),
    "authors": Setting(
        WIDTH, ModalSchedule(learning_rate=1e-2), ModalSchedule(learning_rate=1e-2), 10, 100, 50 / 300, {}
    ),
}
"""By name: the paper states a rate of 1e-3, the code has 1e-2."""

CHOSEN = (
    *("softmax", "temperature_scaling", "energy", "ddu", "mc_dropout", "deep_ensemble", "evidential_classification"),
    *("rcml", "splitpoint_paper", "splitpoint_paper_calibrated", "splitpoint", "splitpoint_conformal", AGREEMENT),
)
"""Methods that are run."""

PAPER_HEADS = ("splitpoint_paper", "splitpoint_paper_calibrated")
ENSEMBLE = "deep_ensemble"
MIXTURES = ("mc_dropout", ENSEMBLE)


class Defective(NamedTuple):
    """A method whose uncertainty is worked out as in the published code."""

    method: str
    name: str = f"entropy={PUBLISHED_ENTROPY}"


DEFECTIVE = {f"{name} with the published entropy": Defective(name) for name in MIXTURES}
"""By the name under which work lists them."""


# What can be asked for


def options() -> tuple[Option, ...]:
    """Options of the suite."""
    return (
        Option("dataset", "data sets", lambda: list(MODAL), ("three_modal",)),
        Option("condition", "what is done to the rows", lambda: CONDITIONS),
        Option("modalities", f"networks of one modality each, or {FUSED} for the one of all", default=[FUSED]),
        Option("methods", "ids of methods", lambda: CHOSEN),
        Option("entropy", "how mixtures work out uncertainty; published is wrong, as in the authors' code",
               lambda: ("fixed", PUBLISHED_ENTROPY), ("fixed",)),
        Option("width", "channels of the first convolution (default: that of the protocol)", default=None, kind=int,
               many=False),
        Option("protocol", "how long networks are trained", lambda: tuple(PROTOCOLS), "short", many=False),
        *machine_options(),
    )  # fmt: skip


def groups_of(
    methods: Sequence[str], entropies: Sequence[str], network: str, condition: str
) -> dict[str, tuple[str, ...]]:
    """Methods of a network under a condition by what they are trained on together."""
    found: dict[str, tuple[str, ...]] = {}
    for name in methods:
        if name in CONTRASTS and (network != FUSED or condition == MISSING):
            continue
        wrong = [own for own, defective in DEFECTIVE.items() if defective.method == name]
        names = (*((name,) if "fixed" in entropies or not wrong else ()),
                 *(wrong if PUBLISHED_ENTROPY in entropies else ()))  # fmt: skip
        group = POST_HOC if name == AGREEMENT or METHODS[name].start == "model" else name
        found[group] = (*found.get(group, ()), *names)
    return found


# Work


def schedule(work: Work) -> ModalSchedule:
    """How the networks of some work are trained, all of them alike."""
    setting = PROTOCOLS[work.protocol]
    usual = setting.schedule if set(CONVOLUTIONS) & set(MODAL[work.dataset].modalities) else setting.views
    return usual if work.epochs is None else replace(usual, epochs=work.epochs, steps=None)


def settings(work: Work) -> dict[str, Any]:
    """What the records tell of networks."""
    own, setting = work.options, PROTOCOLS[work.protocol]
    found = asdict(schedule(work)) | {"width": own["width"]}
    found |= {"deep_ensemble": {"members": setting.members}, "mc_dropout": {"passes": setting.passes}}.get(
        work.group, {}
    )
    return found if own["device"] == "cpu" else found | {"device": own["device"]}


def trial(work: Work, number: int) -> ModalTrial:
    """The rows of a trial."""
    return modal_trial(work.dataset, work.noise, work.network, number, work.seed)


def method_of(name: str, work: Work) -> Any:
    """A method with the settings that it has in these experiments."""
    setting = PROTOCOLS[work.protocol]
    own: dict[str, dict[str, Any]] = {
        "mc_dropout": {"dropout": DROPOUT, "passes": setting.passes},
        "deep_ensemble": {"members": setting.members},
        "rcml": {"annealing": setting.annealing},
    }
    return METHODS[name](**own.get(name, {}))


def factory(work: Work, shapes: Shapes, classes: int) -> Factory:
    """Builds the network of some work."""
    dropout = DROPOUT if work.group == "mc_dropout" else 0.0
    return partial(late_fusion, shapes, classes, work.options["width"], dropout)


def stack(work: Work) -> Any:
    """Conditions that spoil test rows share the networks of clean rows; the others are trained alone."""
    return None if work.noise in NOISY else (work.protocol, work.dataset, work.network)


def obstacles(record: Record) -> tuple[str, ...]:
    """All reasons why a record leaves the published question open; none where it answers it."""
    paper, own = PROTOCOLS["paper"], record.settings
    found = (
        "" if record.dataset == DATASET else "the data are others",
        "" if own.get("width") == paper.width else "networks are smaller",
        "" if own.get("epochs") == paper.schedule.epochs and own.get("steps") is None else "networks take fewer steps",
        "" if own.get("members", paper.members) == paper.members else "ensembles have fewer members",
        "" if own.get("passes", paper.passes) == paper.passes else "MC dropout has fewer passes",
    )
    return tuple(filter(None, found))
