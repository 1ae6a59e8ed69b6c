"""The depth experiment on another device than the CPU, which is pretended: see `pretended_device`."""

import pytest

from pretended_device import NAME, pretending
from rooms import scene_folder
from splitpoint.bench.record import Journal
from splitpoint.bench.run import bench

RIVALS = ["mc_dropout", "sqr_oc", "gaussian", "conformal"]
HEADS = ["splitpoint_conformal", "splitpoint_layers"]

QUICK = {
    "epochs": 1,
    "trials": 1,
    "jobs": 1,
    "progress": False,
    "size": "16x32",
    "width": 2,
    "images": 8,
    "attack_eps": [0.05],
}


@pytest.fixture(scope="module", params=[RIVALS, pytest.param(HEADS, marks=pytest.mark.slow)], ids=["rivals", "heads"])
def both(request, tmp_path_factory):
    """The same experiment on both devices: records, and where images entered networks."""
    folders = [tmp_path_factory.mktemp(name) for name in ("data", "here", "there")]
    with pytest.MonkeyPatch.context() as patch:
        scene_folder(folders[0], patch)
        bench("depth", folders[1], methods=request.param, **QUICK)
        with pretending() as entered:
            bench("depth", folders[2], device=NAME, methods=request.param, **QUICK)
    here, there = ({record.method: record for record in Journal(folder).read()} for folder in folders[1:])
    return here, there, entered


def test_every_method_runs_on_the_device_and_says_the_same(both):
    here, there, entered = both
    assert NAME in entered
    assert [record.error for record in there.values() if record.error] == []
    for method, record in there.items():
        found, known = (one.metrics | {"train_s_per_epoch": 0.0} for one in (record, here[method]))
        assert found == pytest.approx(known, rel=1e-3, abs=1e-4, nan_ok=True)
        assert record.settings == here[method].settings | {"device": NAME}
