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
from splitpoint.baselines.oc import OrthonormalCertificates
from splitpoint.baselines.rcml import Rcml
from splitpoint.baselines.softmax import Softmax
from splitpoint.baselines.sqr_oc import SqrOc
from splitpoint.baselines.table import METHODS, Recipe, catalogue
from splitpoint.baselines.temperature_scaling import TemperatureScaling
from splitpoint.networks import NetworkTraining, train_network

__all__ = [
    "METHODS",
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
    "NetworkTraining",
    "OrthonormalCertificates",
    "Rcml",
    "Recipe",
    "Softmax",
    "SqrOc",
    "TemperatureScaling",
    "catalogue",
    "train_network",
]
