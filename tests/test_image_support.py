"""The score of whole images: its distances against direct computation, and what predictions make of it."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import mahalanobis
from torch import nn

import splitpoint as sp
from splitpoint.batches import Batch
from splitpoint.cache import Table
from splitpoint.calls import MOST_STAGES
from splitpoint.features import open_tap
from splitpoint.files import read_tensors, write_tensors
from splitpoint.image_support import SHRINKAGE, ImageSupport, StageSupport
from splitpoint.metrics import auroc

IMAGES, SIZE = 24, 12
QUICK = {"epochs": 1, "folds": 0, "positions": 16}


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Hourglass(nn.Module):
    """Down to half the resolution and up again, with a skip connection, and a number or classes for every pixel."""

    def __init__(self, outputs=1):
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1, stride=2)
        self.deep, self.up = nn.Conv2d(8, 8, 3, padding=1), nn.Upsample(scale_factor=2)
        self.merge, self.out = nn.Conv2d(12, 6, 3, padding=1), nn.Conv2d(6, outputs, 1)

    def forward(self, x):
        skip = self.first(x).relu()
        x = self.up(self.deep(self.down(skip).relu()).relu())
        return self.out(self.merge(torch.cat([x, skip], 1)).relu())


class Tokens(nn.Module):
    """A number for every step of a sequence."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.out(self.second(self.first(x).relu()).relu())


def network(build=Hourglass, *args):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build(*args).eval()


def images(seed=1, count=IMAGES):
    x = drawn(seed, count, 3, SIZE, SIZE)
    return x, x.mean(1, keepdim=True) + 0.1 * drawn(seed + 1, count, 1, SIZE, SIZE)


def strange(seed=5, count=IMAGES):
    """Smooth images, unlike the noise of the others."""
    return drawn(seed, count, 3, 1, 1) + torch.linspace(-2, 2, SIZE)[:, None] * torch.ones(SIZE)


def fitted(model=None, data=None, method=None, **more):
    method = method or sp.SplitPointRegressor(0.9, **QUICK)
    return method.fit(model or network(), data or images(), progress=False, **more)


@pytest.fixture(scope="module")
def uq():
    return fitted().set_threshold(images(3)[0])


# The distance of one stage


@pytest.mark.parametrize("width", [3, 40], ids=["more images than features", "fewer"])
def test_the_distance_is_that_of_mahalanobis_with_a_shrunk_covariance(width):
    known, x = drawn(0, 30, width) * 3 + 1, drawn(1, 5, width)
    stage = StageSupport.fit(known, None)
    center, spread = known.double().numpy().mean(0), known.double().numpy().std(0)
    standard = (known.double().numpy() - center) / spread
    covariance = (1 - SHRINKAGE) * standard.T @ standard / len(known) + SHRINKAGE * np.eye(width)
    inverse = np.linalg.inv(covariance)
    expected = [mahalanobis((row - center) / spread, np.zeros(width), inverse) for row in x.double().numpy()]
    found = (stage(x) * stage.deviation + stage.usual).exp()
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("width", [3, 40], ids=["more images than features", "fewer"])
def test_training_images_set_the_scale_as_if_each_had_been_left_out(width):
    known = drawn(0, 30, width)
    stage = StageSupport.fit(known, None)
    standard = (known.double().numpy() - known.double().numpy().mean(0)) / known.double().numpy().std(0)
    logs = []
    for row in range(30):
        others = np.delete(standard, row, 0)
        center = others.mean(0)
        covariance = (1 - SHRINKAGE) * (others - center).T @ (others - center) / 30 + SHRINKAGE * np.eye(width)
        logs.append(np.log(mahalanobis(standard[row], center, np.linalg.inv(covariance))))
    assert float(stage.usual) == pytest.approx(np.mean(logs), rel=1e-5)
    assert float(stage.deviation) == pytest.approx(np.std(logs, ddof=1), rel=1e-4)


def test_held_out_images_set_the_scale_where_there_are_enough():
    known, fresh = drawn(0, 40, 6), drawn(1, 30, 6) * 2
    table = Table.in_memory({"features": known})
    support = ImageSupport.fit(table, (2, 4), Table.in_memory({"features": fresh}))
    for stage, part in zip(support.stages, fresh.split([2, 4], 1), strict=True):
        z = stage(part)
        assert float(z.mean()) == pytest.approx(0, abs=1e-6)
        assert float(z.std()) == pytest.approx(1, abs=1e-6)
    few = ImageSupport.fit(table, (2, 4), Table.in_memory({"features": fresh[:9]}))
    alone = ImageSupport.fit(table, (2, 4), None)
    assert torch.equal(few([known[:, :2], known[:, 2:]]), alone([known[:, :2], known[:, 2:]]))


def test_a_feature_that_never_moved_leaves_every_number_finite():
    known = torch.cat([drawn(0, 20, 2), torch.full((20, 1), 7.0)], 1)
    assert torch.isfinite(StageSupport.fit(known, None)(known + 1)).all()


# Which layers


def stages_of(model, *args, squeezable=2):
    return open_tap(model.eval(), None, Batch(args, {}, None), stages=squeezable)[0].stages


def test_a_network_on_maps_is_read_where_it_reads_its_input_and_all_along():
    expected = ("first:input", "down:input", "deep:input", "merge:input")
    assert stages_of(network(), images()[0]) == expected
    assert stages_of(network(Tokens), drawn(0, 4, 7, 3)) == ("first:input", "second:input")


def test_deep_networks_are_read_at_a_few_places_spread_over_them():
    layers = [nn.Conv2d(3, 3, 3, padding=1) for _ in range(20)]
    found = stages_of(nn.Sequential(*layers), images()[0])
    assert len(found) == MOST_STAGES - 1
    assert found[0] == "0:input"
    assert {int(name.split(":")[0]) for name in found} == {0, 3, 6, 9, 11, 14, 17}


def test_what_two_layers_read_counts_once():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.out = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), nn.Conv2d(3, 1, 1)

        def forward(self, x):
            return self.out((self.a(x) + self.b(x)).relu())

    assert len(stages_of(network(Branches), images()[0])) == 1


def test_no_stages_are_read_where_the_answer_is_no_map():
    pooled = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1))
    assert stages_of(pooled, images()[0]) == ()
    uq = fitted(pooled, (images()[0], drawn(0, IMAGES, 1)))
    assert uq.images is None
    with pytest.raises(sp.SettingsError, match="Expected a prediction with a score for whole images, but got one"):
        uq(images()[0]).image.epistemic  # noqa: B018


def test_later_batches_are_read_as_the_first_was_whatever_their_size():
    model, (x, _) = network(), images()
    tap, first = open_tap(model, None, Batch((x,), {}, None), stages=2)
    again = tap(x)
    assert all(torch.equal(a, b) for a, b in zip(first.stages, again.stages, strict=True))
    assert [len(vectors) for vectors in tap(x[:5, :, :6, :6]).stages] == [5] * 4
    assert not any(module._forward_hooks for module in model.modules())


# What predictions make of it


def test_strange_images_score_higher_and_are_flagged(uq):
    known, foreign = uq(images(7)[0]).image, uq(strange()).image
    assert known.epistemic.shape == foreign.flagged.shape == foreign.percentile.shape == (IMAGES,)
    assert (known.epistemic >= 0).all()
    assert auroc(known.epistemic, foreign.epistemic) > 0.95
    assert foreign.flagged.float().mean() > 0.9
    assert known.flagged.float().mean() < 0.3
    assert (foreign.percentile >= 0).all()
    assert (foreign.percentile <= 100).all()


def test_a_threshold_is_the_conformal_quantile_of_the_reference_images(uq):
    score = uq(images(3)[0]).image.epistemic.sort().values
    assert int(uq(images(3)[0]).image.flagged.sum()) == IMAGES - math.ceil(0.95 * (IMAGES + 1))
    other = fitted().set_threshold(uq(images(3)[0]), quantile=0.5)
    assert float(other.image_threshold) == pytest.approx(float(score[math.ceil((IMAGES + 1) / 2) - 1]), rel=1e-5)


def test_too_few_images_for_a_threshold_are_told_and_pixels_have_one():
    with pytest.warns(sp.SplitPointWarning, match="images: .* takes 19 images, .* of these 12, which 1 of 13"):
        few = fitted().set_threshold(images(3, 12)[0])
    out = few(images(3, 12)[0])
    assert not out.image.flagged.any()
    assert float(out.flagged.double().mean()) == pytest.approx(0.05, abs=1e-3)


def test_pixels_are_flagged_beside_images(uq):
    out = uq(images(7)[0])
    assert out.flagged.shape == (IMAGES, 1, SIZE, SIZE)
    assert out.image.flagged.shape == (IMAGES,)


def test_scores_follow_batches_slices_and_devices(uq):
    x = images(7)[0]
    out = uq(x)
    whole = uq.predict([(part,) for part in x.split(7)])
    torch.testing.assert_close(whole.image.epistemic, out.image.epistemic, rtol=1e-4, atol=1e-5)
    assert torch.equal(out[3:5].image.epistemic, out.image.epistemic[3:5])
    assert torch.equal(out[torch.tensor([4, 1])].image.flagged, out.image.flagged[[4, 1]])
    assert torch.equal(out.to("cpu").image.percentile, out.image.percentile)


def test_single_pixels_make_up_no_image(uq):
    x, y = images(2)
    out = uq(x)
    part = out[~out.mean.isnan()]
    assert part.mean.shape == (out.mean.numel(),)
    with pytest.raises(sp.SettingsError, match="score for whole images"):
        _ = part.image
    y[0, 0, 0, :3] = torch.nan
    found = sp.evaluate(uq, (x, y), progress=False)
    assert found["rows"] == IMAGES
    assert 0 <= found["picp"] <= 1


def test_a_saved_predictor_scores_images_as_before(uq, tmp_path):
    uq.save(tmp_path / "uq.safetensors")
    again = sp.load(tmp_path / "uq.safetensors", network())
    a, b = uq(strange()).image, again(strange()).image
    assert torch.equal(a.epistemic, b.epistemic)
    assert torch.equal(a.percentile, b.percentile)
    assert again.tap.stages == uq.tap.stages


def test_files_without_a_score_for_images_load_and_say_so(uq, tmp_path):
    path = tmp_path / "uq.safetensors"
    uq.save(path)
    metadata, tensors = read_tensors(path)
    description = json.loads(metadata["splitpoint"])
    del description["layer"]["stages"]
    kept = {name: value for name, value in tensors.items() if not name.startswith(("images.", "image_"))}
    write_tensors(path, kept, {"splitpoint": json.dumps(description), "format": "pt"})
    out = sp.load(path, network())(strange())
    assert out.flagged.shape == (IMAGES, 1, SIZE, SIZE)
    with pytest.raises(sp.SettingsError, match=r"fit SplitPointRegressor or .* on ten or more images"):
        out.image  # noqa: B018


def test_without_a_threshold_the_score_is_there_and_its_flags_say_what_to_do():
    out = fitted()(strange())
    assert out.image.epistemic.shape == (IMAGES,)
    with pytest.raises(sp.SettingsError, match=r"none was set; call uq\.set_threshold"):
        out.image.flagged  # noqa: B018


@pytest.mark.parametrize("case", ["paper", "few images", "rival"])
def test_fits_without_a_score_for_images_say_so(case):
    method = {
        "paper": sp.SplitPointRegressor.paper(**QUICK),
        "few images": sp.SplitPointRegressor(**QUICK),
        "rival": sp.baselines.METHODS["conformal"](),
    }[case]
    data = images(count=9) if case == "few images" else images()
    out = fitted(None, data, method, **({"calibration": images(9)} if case == "rival" else {}))(strange())
    with pytest.raises(sp.SettingsError, match="score for whole images"):
        out.image  # noqa: B018


def test_calibration_images_set_the_scale():
    uq = fitted(calibration=images(11))
    vectors = uq.tap(images(11)[0])
    parts = [*vectors.stages, *uq.layout.bands(vectors.features)]
    for stage, part in zip(uq.images.stages, parts, strict=True):
        assert float(stage(part).mean()) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("layer", ["merge", ["deep", "merge"]], ids=["one", "several"])
def test_layers_that_are_named_are_the_stages(layer):
    uq = fitted(method=sp.SplitPointRegressor(0.9, layer=layer, **QUICK))
    assert uq.tap.stages == ()
    assert len(uq.images.stages) == (1 if layer == "merge" else 2)
    assert uq(strange()).image.epistemic.shape == (IMAGES,)


def test_sequences_and_classes_of_pixels_have_a_score_too():
    x = drawn(0, IMAGES, 9, 3)
    uq = fitted(network(Tokens), (x, x.sum(2, keepdim=True) + drawn(1, IMAGES, 9, 1)))
    assert uq(x + 5).image.epistemic.min() > uq(x).image.epistemic.median()
    pixels = images()[0]
    labels = (pixels.mean(1) > 0).long()
    clf = fitted(network(Hourglass, 2), (pixels, labels), sp.SplitPointClassifier(epochs=2, positions=16))
    assert auroc(clf(images(7)[0]).image.epistemic, clf(strange()).image.epistemic) > 0.95


# Recorded on disk


def test_a_cache_holds_the_images_too_and_is_resumed(tmp_path):
    x, y = images()
    batches = list(zip(x.split(4), y.split(4), strict=True))

    def some():
        yield from batches[:3]
        raise KeyboardInterrupt

    method = sp.SplitPointRegressor(0.9, **QUICK, cache=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        method.fit(network(), some(), progress=False)
    journal = tmp_path / "train" / "images" / "journal.jsonl"
    journal.write_text("".join(line + "\n" for line in journal.read_text().splitlines()[:2]))  # killed in between
    resumed = method.fit(network(), batches, progress=False)
    whole = sp.SplitPointRegressor(0.9, **QUICK).fit(network(), batches, progress=False)
    a, b = resumed.own_tensors(), whole.own_tensors()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    again = method.fit(network(), batches, progress=False)
    assert torch.equal(again(strange()).image.epistemic, whole(strange()).image.epistemic)


# Several maps at their own resolution


def test_a_regressor_on_several_maps_answers_as_if_they_had_been_up_sampled_first():
    method = sp.SplitPointRegressor((0.5, 0.9), layer=["down", "deep", "merge"], **QUICK | {"epochs": 3})
    uq = fitted(method=method)
    reading = uq.tap(strange())
    with torch.no_grad():
        found = uq._predict(uq._features(reading.features), reading.output)
        expected = uq._predict(uq.layout.features(reading.features), reading.output)
    for name in ("lowers", "uppers", "aleatoric", "epistemic", "total", "support", "sds", "mar"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-3, atol=1e-4, msg=name)
    assert uq.heads.trunk("mar").weights[1].shape[1] == 16
