"""Stand-ins until the tables are there."""

from splitpoint.bench.networks import NETWORKS


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
SETS = {
    name: Titled(title)
    for name, title in {
        "mnist": "MNIST",
        "fashion_mnist": "Fashion-MNIST",
        "cifar10": "CIFAR-10",
        "cifar100": "CIFAR-100",
        "imagenet": "ImageNet",
        "notmnist": "notMNIST",
        "svhn": "SVHN",
        "tiny_imagenet": "Tiny ImageNet",
        "imagenet_o": "ImageNet-O",
    }.items()
}


class Suite(Titled):
    def __init__(self, title, obstacles):
        super().__init__(title)
        self.obstacles = obstacles


SECOND_TARGET = ("energy", "naval")
EPOCHS = {"uci": 400, "images": 350}
OUTSIDE = {"cifar10": "svhn + tiny_imagenet", "cifar100": "svhn + tiny_imagenet", "imagenet": "imagenet_o"}


def _regression(record):
    found = []
    if record.settings.get("epochs", 400) != 400:
        found.append(f"networks are trained for {record.settings['epochs']} epochs in place of {EPOCHS['uci']}")
    if record.protocol == "paper" and record.noise != "clean":
        found.append("the published tables were made with other noise than the paper states")
    if record.protocol == "paper" and record.dataset in SECOND_TARGET:
        found.append("the published tables predict the second target")
    return tuple(found)


def comes_trained(record):
    spec = NETWORKS.get(record.network)
    silent = record.network and record.settings and "epochs" not in record.settings
    return bool(silent or (spec and spec.trained))


def _images(record):
    settings, spec = record.settings, NETWORKS.get(record.network)
    trained = comes_trained(record)
    few = settings.get("epochs", EPOCHS["images"] if record.protocol == "paper" else 0) < EPOCHS["images"]
    return tuple(
        filter(
            None,
            [
                f"the network is {spec.differs} than the published one" if spec and spec.differs else "",
                "the network is trained for fewer epochs than the published one" if few and not trained else "",
                "the published network was trained elsewhere" if record.dataset == "imagenet" and not trained else "",
                _other_ood(settings.get("ood", ""), OUTSIDE.get(record.dataset, "")),
                "half of the published test images serve calibration" if trained else "",
            ],
        )
    )


def _other_ood(ours, published):
    sets, wanted = ([part.strip() for part in text.split("+")] for text in (ours, published))
    if not ours or not published or set(sets) == set(wanted):
        return ""
    told, theirs = (" + ".join(SETS[name].title for name in part) for part in (sets, wanted))
    alone = " alone" if set(sets) < set(wanted) else ""
    return f"{told}{alone} in place of {theirs} is out of distribution"


SUITES = {
    "uci": Suite("UCI regression", _regression),
    "cubic": Suite("Cubic regression", lambda record: ()),
    "images": Suite("Image classification", _images),
    "uci-ablation": Suite("UCI ablations", _regression),
    "images-ablation": Suite("Image ablations", _images),
}
