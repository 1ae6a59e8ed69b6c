"""Training networks from scratch, as one stack where the architecture allows it.

Methods that train networks of their own stand on it, and so does everything that needs a plain trained network.
"""

from splitpoint.networks.architecture import Architecture
from splitpoint.networks.surgery import Factory, build, factory_of, seeded
from splitpoint.networks.trainer import Prepared, Trainer, fold_units, prepared_plain, train_network, train_networks
from splitpoint.networks.training import NetworkTraining, train_stack

__all__ = [
    "Architecture",
    "Factory",
    "NetworkTraining",
    "Prepared",
    "Trainer",
    "build",
    "factory_of",
    "fold_units",
    "prepared_plain",
    "seeded",
    "train_network",
    "train_networks",
    "train_stack",
]
