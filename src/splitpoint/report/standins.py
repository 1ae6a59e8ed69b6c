"""Stand-ins until the tables are there."""

from splitpoint.bench.networks import NETWORKS, comes_trained
from splitpoint.bench.suites import SUITES as KNOWN
from splitpoint.datasets import SETS


class Titled:
    def __init__(self, title):
        self.title = title


METHODS = {
    name: Titled(title)
    for name, title in {
        "softmax": "Softmax",
        "temperature_scaling": "Temperature scaling",
        "energy": "Energy score",
        "oc": "OC",
        "ddu": "DDU",
        "mc_dropout": "MC dropout",
        "deep_ensemble": "Deep ensemble",
        "evidential_regression": "Evidential regression",
        "evidential_classification": "Evidential classification",
        "evidential_quantile": "Evidential quantiles",
        "sqr_oc": "SQR-OC",
        "gaussian": "Gaussian",
        "laplace": "Laplace",
        "conformal": "Conformal",
        "splitpoint_paper": "Split-point (paper)",
        "splitpoint_paper_calibrated": "Split-point calibrated (paper)",
        "splitpoint": "Split-point (ours)",
        "splitpoint_conformal": "Split-point calibrated (ours)",
        "splitpoint_layers": "Split-point layers (ours)",
    }.items()
}


class Suite(Titled):
    def __init__(self, title, obstacles):
        super().__init__(title)
        self.obstacles = obstacles


EPOCHS = 350
OUTSIDE = {"cifar10": "svhn + tiny_imagenet", "cifar100": "svhn + tiny_imagenet", "imagenet": "imagenet_o"}


def obstacles(record):
    settings, spec = record.settings, NETWORKS.get(record.network)
    trained = comes_trained(record)
    few = settings.get("epochs", EPOCHS if record.protocol == "paper" else 0) < EPOCHS
    return tuple(filter(None, [
        f"the network is {spec.differs} than the published one" if spec and spec.differs else "",
        "the network is trained for fewer epochs than the published one" if few and not trained else "",
        "the published network was trained elsewhere" if record.dataset == "imagenet" and not trained else "",
        _other_ood(settings.get("ood", ""), OUTSIDE.get(record.dataset, "")),
        "half of the published test images serve calibration" if trained else "",
    ]))


def _other_ood(ours, published):
    sets, wanted = ([part.strip() for part in text.split("+")] for text in (ours, published))
    if not ours or not published or set(sets) == set(wanted):
        return ""
    told, theirs = (" + ".join(SETS[name].title for name in part) for part in (sets, wanted))
    alone = " alone" if set(sets) < set(wanted) else ""
    return f"{told}{alone} in place of {theirs} is out of distribution"


SUITES = {
    "uci": KNOWN["uci"],
    "cubic": KNOWN["cubic"],
    "images": Suite("Image classification", obstacles),
    "uci-ablation": KNOWN["uci-ablation"],
    "images-ablation": Suite("Image ablations", obstacles),
}
