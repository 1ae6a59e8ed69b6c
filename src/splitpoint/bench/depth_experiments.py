"""How the depth experiment is set up: protocols, what can be asked for, the settings of methods, what is published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from splitpoint.baselines import METHODS
from splitpoint.bench.depth_trials import STRENGTHS, DepthTrial, depth_trial
from splitpoint.bench.image_experiments import machine_options
from splitpoint.bench.map_training import MapSchedule
from splitpoint.bench.record import Record
from splitpoint.bench.suite import Option, Work
from splitpoint.bench.unet import DECODER, UNet
from splitpoint.datasets.scene_set import Size
from splitpoint.datasets.scenes import SCENES
from splitpoint.errors import SettingsError
from splitpoint.networks import Factory

NETWORK = "unet"

CHOSEN: Mapping[str, Mapping[str, Any]] = {
    "mc_dropout": {"dropout": 0.1, "passes": 5},
    "deep_ensemble": {"members": 5},
    "evidential_regression": {"regulariser": 0.1},
    "evidential_quantile": {},
    "sqr_oc": {"certificates": 100},
    "gaussian": {},
    "conformal": {},
    "splitpoint_paper": {},
    "splitpoint_paper_calibrated": {},
    "splitpoint": {},
    "splitpoint_conformal": {},
    "splitpoint_layers": {"layer": list(DECODER)},
}
"""Methods that are run and the settings of theirs that the paper states, or that name places in the U-Net."""

MEMBERS = {"deep_ensemble": "gaussian"}
"""Methods whose networks are trained as those of another are, one of them being the other's own."""

PAPER_HEADS = ("splitpoint_paper", "splitpoint_paper_calibrated")
PIXEL_BATCH = 32 * 256
"""Rows of a step of heads with the paper's recipe: as many pixels of 32 images as are recorded."""

ROWS_PER_CALL = 32


@dataclass(frozen=True)
class Setting:
    """What a protocol says where no option says otherwise.

    Attributes:
        width: of the U-Net.
        norm: of the U-Net.
        schedule: of all networks.
        heads: settings of heads with the paper's recipe.
        inverse: whether targets are inverse depths, as in the authors' files, and not metres.
        ood: sets out of distribution; empty for those that the paper takes for a data set.
        most_ood: most images of each.
    """

    width: int
    norm: str
    schedule: MapSchedule
    heads: Mapping[str, Any]
    inverse: bool
    ood: tuple[str, ...] = ()
    most_ood: int = 1_000


PROTOCOLS: dict[str, Setting] = {
    "short": Setting(
        16,
        "batch",
        MapSchedule(30, 2e-3, 16),
        {"epochs": 40, "batch_size": 1024, "learning_rate": 1e-3},
        inverse=False,
        ood=("camvid", "kitti_road"),
        most_ood=300,
    ),
    "paper": Setting(
        32,
        "none",
        MapSchedule(None, 5e-5, 32, rise=0.0, iterations=60_000),
        {"epochs": 89, "batch_size": PIXEL_BATCH, "learning_rate": 5e-5},
        inverse=True,
    ),
}
"""By name. The heads of "paper" take about 60,000 steps on 21,600 images."""


# What can be asked for


def sizes(text: str) -> Size:
    """Height and width from text such as ``64x80``."""
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) and int(part) % 16 == 0 for part in parts):
        raise SettingsError(
            f"Expected size as height x width in multiples of 16, such as 64x80, but got {text!r}; change it."
        )
    return int(parts[0]), int(parts[1])


def options() -> tuple[Option, ...]:
    """Options of the suite."""
    return (
        Option("datasets", "data sets", lambda: _scenes(depth=True), ("nyu_depth",)),
        Option("methods", "ids of methods, beside which controls are always run", lambda: list(CHOSEN)),
        Option("size", "height x width of all images", default="64x80", many=False),
        Option("width", "channels of the first stage of the U-Net (default: that of the protocol)", default=None,
               kind=int, many=False),
        Option("norm", "of the U-Net, where not that of the protocol", lambda: ("batch", "none"), None, many=False),
        Option("ood", "sets out of distribution, where not those of the protocol", lambda: _scenes(depth=False), None),
        Option("attack_eps", "steps of the attack", default=STRENGTHS, kind=float),
        Option("images", "most training images, and of every part that tests (default: all)", default=None, kind=int,
               many=False),
        Option("protocol", "how long networks are trained", lambda: tuple(PROTOCOLS), "short", many=False),
        *machine_options(),
    )  # fmt: skip


def _scenes(*, depth: bool) -> list[str]:
    """Sets of scenes with or without depths, by name."""
    return [name for name, entry in SCENES.items() if entry.depth == depth]


# Work


def schedule(work: Work) -> MapSchedule:
    """How the networks of some work are trained, all of them alike."""
    usual = PROTOCOLS[work.protocol].schedule
    return usual if work.epochs is None else replace(usual, epochs=work.epochs, iterations=None)


def settings(work: Work) -> dict[str, Any]:
    """What the records tell of networks and images."""
    own = work.options
    found = asdict(schedule(work)) | {"width": own["width"], "norm": own["norm"], "images": own["images"]}
    found |= {"size": "{}x{}".format(*own["size"]), "ood": " + ".join(own["ood"])}
    return found if own["device"] == "cpu" else found | {"device": own["device"]}


def trial(work: Work, number: int) -> DepthTrial:
    """The scenes of a trial."""
    own, setting = work.options, PROTOCOLS[work.protocol]
    limits = {"images": own["images"], "most_ood": setting.most_ood}
    size, inverse = own["size"], setting.inverse
    return depth_trial(work.dataset, own["ood"], number, size=size, seed=work.seed, inverse=inverse, **limits)


def method_of(name: str, work: Work) -> Any:
    """A method with the settings that it has in these experiments."""
    own = {**CHOSEN[name], "rows_per_call": ROWS_PER_CALL}
    return METHODS[name](**own, **(PROTOCOLS[work.protocol].heads if name in PAPER_HEADS else {}))


def factory(work: Work) -> Factory:
    """Builds the network of some work."""
    return partial(UNet, work.options["width"], work.options["norm"])


def obstacles(record: Record) -> tuple[str, ...]:
    """All reasons why a record leaves the published question open; none where it answers it."""
    paper, own = PROTOCOLS["paper"], record.settings
    ood = " + ".join(SCENES[record.dataset].ood) if record.dataset in SCENES else own.get("ood")
    found = (
        "" if own.get("width") == paper.width and own.get("norm") == paper.norm else "the U-Net is another",
        "" if own.get("iterations") == paper.schedule.iterations else "networks take fewer steps",
        "" if own.get("size") == "128x160" and own.get("images") is None else "images are smaller or fewer",
        "" if PROTOCOLS[record.protocol].inverse else "depths are in metres, the published ones inverse",
        "" if own.get("ood") == ood else "other sets are out of distribution",
    )
    return tuple(filter(None, found))
