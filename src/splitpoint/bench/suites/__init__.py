"""All suites of experiments, one file each, in the order of reports."""

from splitpoint.bench.suite import Suite
from splitpoint.bench.suites.cubic import CUBIC
from splitpoint.bench.suites.depth import DEPTH
from splitpoint.bench.suites.images import IMAGES
from splitpoint.bench.suites.images_ablation import IMAGES_ABLATION
from splitpoint.bench.suites.multimodal import MULTIMODAL
from splitpoint.bench.suites.uci import UCI
from splitpoint.bench.suites.uci_ablation import UCI_ABLATION

SUITES: dict[str, Suite] = {
    suite.name: suite for suite in (UCI, CUBIC, IMAGES, DEPTH, MULTIMODAL, UCI_ABLATION, IMAGES_ABLATION)
}
"""Suites by name."""
