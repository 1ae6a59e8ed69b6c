"""Image classification: every method on the same images and networks, post-hoc ones on rows recorded once."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from splitpoint.baselines import METHODS
from splitpoint.baselines.trained import NetworkPredictor
from splitpoint.bench.artefacts import Drawing
from splitpoint.bench.drawings import drawing
from splitpoint.bench.image_experiments import (
    attack_unit,
    base_network,
    evidence_of,
    image_cells,
    image_inputs,
    image_options,
    obstacles,
    row_inputs,
    schedule,
    settings,
    training,
    training_images,
    trial,
)
from splitpoint.bench.image_trials import ImageTrial, batches
from splitpoint.bench.networks import NETWORKS
from splitpoint.bench.suite import Fit, Judged, Option, Request, Suite, Work
from splitpoint.bench.training import Schedule, cross_entropy
from splitpoint.classification import ClassificationPredictor, SplitPointClassifier
from splitpoint.errors import SettingsError
from splitpoint.metrics import measured

POST_HOC = "post_hoc"
"""Group of the methods that stand on one base network; others train networks of their own."""

LEFT_OUT = ("mc_dropout", "conformal")
"""Methods for classifiers that are not run: the networks have no dropout, and prediction sets have no metric here."""

TEMPERED = ("oc", "ddu", "deep_ensemble")
"""Rivals whose probabilities the paper scales with a temperature, found on calibration images."""

UNTAUGHT = ("softmax", "energy", "temperature_scaling")
"""Methods that learn nothing from the training images, whose rows are not recorded for them."""

DRAWN_TRIAL, SHOWN_METHOD = 0, "splitpoint_conformal"
"""Trial that pages draw, and the method whose most and least certain images they show."""

SHORT_HEAD_EPOCHS = 60
"""Of heads with the paper's recipe, which has 300, where networks have a short schedule too."""

PAPER_HEADS: dict[str, dict[str, Any]] = {"imagenet": {"epochs": 100, "learning_rate": 1e-5}}
"""What the paper states for the heads of data sets that differ from the others."""
