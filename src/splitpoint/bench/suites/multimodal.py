"""Several modalities: LUMA's networks and noise, all rivals on one schedule, and which modality not to trust."""

from __future__ import annotations

from splitpoint.bench.fitting import POST_HOC
from splitpoint.bench.modal_evidence import judge
from splitpoint.bench.modal_experiments import (
    DEFECTIVE,
    PROTOCOLS,
    groups_of,
    method_of,
    obstacles,
    options,
    settings,
    stack,
    trial,
)
from splitpoint.bench.modal_fitting import fit
from splitpoint.bench.modal_trials import FUSED, SPOILING, chosen
from splitpoint.bench.suite import Request, Suite, Work
from splitpoint.bench.workers import check_device
from splitpoint.errors import SettingsError


def cells(request: Request) -> list[Work]:
    """The work of a request; one modality of a single one cannot be spoilt."""
    check_device(request["device"])
    own = {
        "width": request["width"] or PROTOCOLS[request["protocol"]].width,
        "cache": request["cache"] or request.folder / "cache",
        "device": request["device"],
    }
    found = []
    for dataset in request["dataset"]:
        for network in request["modalities"]:
            chosen(dataset, network)
            place = {"protocol": request["protocol"], "dataset": dataset, "network": network, "options": own}
            for condition in request["condition"]:
                if network == FUSED or condition not in SPOILING:
                    groups = groups_of(request["methods"], request["entropy"], network, condition)
                    found += [request.work(**place, noise=condition, group=g, methods=m) for g, m in groups.items()]
    if not found:
        raise SettingsError(
            f"Expected something to run, but got networks of {', '.join(request['modalities'])} alone, under "
            f"{', '.join(request['condition'])}, with {', '.join(request['methods'])}; add modalities {FUSED}."
        )
    trial(found[0], 0)  # a set that is missing is an error now
    return found


def cost(work: Work) -> float:
    """Networks to train."""
    return 1.0 if work.group == POST_HOC else float(method_of(work.group, work)._members)


MULTIMODAL = Suite(
    name="multimodal",
    title="Several modalities",
    help="images, sounds and texts or several views: noise, conflicts, missing ones, and which is to blame",
    trials=5,
    options=options(),
    epochs="the networks",
    cells=cells,
    settings=settings,
    fixed=("epochs", "steps", "learning_rate", "width"),
    cost=cost,
    trial=trial,
    fit=fit,
    judge=judge,
    stack=stack,
    one_by_one=lambda _: True,
    variants=DEFECTIVE,
    obstacles=obstacles,
)
