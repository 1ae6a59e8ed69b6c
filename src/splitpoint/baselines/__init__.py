"""Every method behind one interface: ``METHODS[id](...).fit(model_or_factory, data)`` returns a predictor."""

from splitpoint.baselines.conformal import Conformal
from splitpoint.baselines.ddu import Ddu
from splitpoint.baselines.deep_ensemble import DeepEnsemble
from splitpoint.baselines.energy import Energy
from splitpoint.baselines.evidential_classification import EvidentialClassification
from splitpoint.baselines.evidential_quantile import EvidentialQuantile
from splitpoint.baselines.evidential_regression import EvidentialRegression
from splitpoint.baselines.gaussian import Gaussian
from splitpoint.baselines.laplace import Laplace
from splitpoint.baselines.mc_dropout import McDropout
from splitpoint.baselines.method import Baseline
from splitpoint.baselines.oc import OrthonormalCertificates
from splitpoint.baselines.plain import train_network
from splitpoint.baselines.settings import About
from splitpoint.baselines.softmax import Softmax
from splitpoint.baselines.splitpoint import SplitPoint, SplitPointCalibrated
from splitpoint.baselines.sqr_oc import SqrOc
from splitpoint.baselines.temperature_scaling import TemperatureScaling

METHODS: dict[str, type[Baseline]] = {
    "splitpoint": SplitPoint,
    "splitpoint_calibrated": SplitPointCalibrated,
    "gaussian": Gaussian,
    "mc_dropout": McDropout,
    "deep_ensemble": DeepEnsemble,
    "evidential_regression": EvidentialRegression,
    "evidential_quantile": EvidentialQuantile,
    "evidential_classification": EvidentialClassification,
    "sqr_oc": SqrOc,
    "oc": OrthonormalCertificates,
    "ddu": Ddu,
    "laplace": Laplace,
    "temperature_scaling": TemperatureScaling,
    "conformal": Conformal,
    "softmax": Softmax,
    "energy": Energy,
}
"""All methods by their id."""

__all__ = [
    "METHODS",
    "About",
    "Baseline",
    "Conformal",
    "Ddu",
    "DeepEnsemble",
    "Energy",
    "EvidentialClassification",
    "EvidentialQuantile",
    "EvidentialRegression",
    "Gaussian",
    "Laplace",
    "McDropout",
    "OrthonormalCertificates",
    "Softmax",
    "SplitPoint",
    "SplitPointCalibrated",
    "SqrOc",
    "TemperatureScaling",
    "train_network",
]
