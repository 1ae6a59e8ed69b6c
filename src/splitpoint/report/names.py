"""What ids are called on a page, and the order in which they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

METHODS = {
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
    "splitpoint": "Split-point (paper)",
    "splitpoint_calibrated": "Split-point calibrated (paper)",
    "splitpoint_default": "Split-point (ours)",
    "splitpoint_default_calibrated": "Split-point calibrated (ours)",
    "splitpoint_layers": "Split-point layers (ours)",
    "splitpoint_conformal": "Split-point conformal (ours)",
}
"""Methods in the order of the tables: rivals, then the paper's recipe, then ours."""

SUITES = {
    "uci": "UCI regression",
    "cubic": "Cubic regression",
    "images": "Image classification",
    "uci-ablation": "UCI ablations",
    "images-ablation": "Image ablations",
}
NOISES = {
    "clean": "no added noise",
    "log_normal": "log-normal noise",
    "trimodal": "trimodal noise",
    "gaussian": "Gaussian noise",
}
PROTOCOLS = {"authors": "authors' protocol", "paper": "paper's protocol", "short": "short schedule"}
PICTURES = {
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet": "ImageNet",
}
OUTSIDE = PICTURES | {
    "notmnist": "notMNIST",
    "svhn": "SVHN",
    "tiny_imagenet": "Tiny ImageNet",
    "imagenet_o": "ImageNet-O",
}
"""Pictures also of sets that are out of distribution only."""

NETWORKS = {
    "lenet": "LeNet",
    "vgg16": "VGG-16",
    "vgg16_small": "small VGG-16",
    "torchvision_vgg16": "VGG-16",
    "wide_resnet": "Wide ResNet",
    "wide_resnet_small": "small Wide ResNet",
    "torchvision_wide_resnet50_2": "Wide ResNet-50-2",
    "resnet18": "ResNet-18",
    "resnet20_published": "ResNet-20",
    "resnet32_published": "ResNet-32",
}
FACTORS = {"calib_fraction": "calibration fraction", "uq_train_set": "heads trained on"}
"""Settings of ablations whose names do not speak for themselves."""

VALUES = {"train": "training pictures", "calibration": "calibration pictures"}
"""Values of settings likewise."""


def title(name: str, titles: Mapping[str, str] = METHODS) -> str:
    """The title of an id; one that is not known speaks for itself.

    >>> title("sqr_oc"), title("my_method")
    ('SQR-OC', 'my method')
    """
    return titles.get(name, name.replace("_", " "))


def dataset_title(name: str) -> str:
    """The title of a data set, or of one and the network that it goes with.

    >>> dataset_title("cifar10/resnet20_published"), dataset_title("boston"), dataset_title("svhn/my_net")
    ('CIFAR-10, ResNet-20', 'boston', 'svhn, my net')
    """
    return ", ".join(title(part, PICTURES | NETWORKS) for part in name.split("/"))


def ordered_datasets(names: Iterable[str]) -> tuple[str, ...]:
    """Data sets in their order on the page, each once: known pictures and networks first, then the alphabet.

    >>> ordered_datasets(["wine", "cifar10/vgg16", "mnist/lenet", "boston"])
    ('mnist/lenet', 'cifar10/vgg16', 'boston', 'wine')
    """
    known = {f"{pictures}/{network}": "" for pictures in PICTURES for network in NETWORKS}
    return ordered(names, known)


def ordered(names: Iterable[str], titles: Mapping[str, str] = METHODS) -> tuple[str, ...]:
    """Ids in their order on the page, each once: known ones first, then numbers by size, then the alphabet.

    >>> ordered(["wine", "splitpoint", "boston", "mc_dropout", "wine"])
    ('mc_dropout', 'splitpoint', 'boston', 'wine')
    >>> ordered(["10", "9", "0.5"])
    ('0.5', '9', '10')
    """
    places = {name: place for place, name in enumerate(titles)}

    def key(name: str) -> tuple[int, float, str]:
        number = as_number(name)
        return places.get(name, len(places)), float("inf") if number is None else number, name

    return tuple(sorted(set(names), key=key))


def as_number(text: str) -> float | None:
    """The number that a text is, if it is a finite one."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None
