"""Agreement on whole models: who is blamed, missing modalities, any form of network and data, files and refusals."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import splitpoint as sp
from splitpoint.errors import DataError, LayerError, SettingsError, ShapeError, SplitPointWarning, StorageError

NAMES = ("left", "middle", "right")
PLACES = {name: f"{name}.features" for name in NAMES}


class Branch(nn.Module):
    """Features and logits of one modality."""

    def __init__(self, width, classes):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(width, 16), nn.ReLU())
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.features(x))


class Fusion(nn.Module):
    """The mean of the logits of the modalities that are given."""

    def __init__(self, classes=4, width=3):
        super().__init__()
        self.left, self.middle, self.right = (Branch(width, classes) for _ in NAMES)

    def forward(self, left=None, middle=None, right=None):
        pairs = zip((self.left, self.middle, self.right), (left, middle, right), strict=True)
        return torch.stack([branch(x) for branch, x in pairs if x is not None]).mean(0)


def sample(count=240, classes=4, seed=0, deaf=()):
    """Three modalities with centres of their own for every class; those in `deaf` are noise."""
    label = torch.arange(count) % classes
    generator = torch.Generator().manual_seed(seed + 100)
    views = []
    for number, name in enumerate(NAMES):
        centres = 2 * torch.randn(classes, 3, generator=torch.Generator().manual_seed(number))
        noise = torch.randn(count, 3, generator=generator)
        views.append(noise if name in deaf else centres[label] + noise)
    return (*views, label)


def network(classes=4, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Fusion(classes)


def fitted(model=None, deaf=(), **settings):
    """Agreement of a network that was not trained, whose random features tell the classes all the same."""
    model = model or network()
    method = sp.Agreement(**{"branches": PLACES, **settings})
    return method.fit(model, sample(deaf=deaf), calibration=sample(120, seed=1, deaf=deaf), progress=False)


@pytest.fixture(scope="module")
def uq():
    return fitted()


def swapped(data, number):
    """The same rows with one modality exchanged for that of the next class."""
    views = list(data[:3])
    views[number] = views[number].roll(1, 0)
    return views


def test_a_modality_of_another_class_is_in_conflict_and_blamed(uq):
    *views, label = sample(400, seed=2)
    clean = uq(*views)
    assert clean.conflict.shape == (400,)
    assert clean.blame.shape == (400, 3)
    assert clean.modality_probs.shape == (3, 400, 4)
    assert clean.modalities == NAMES
    assert (clean.modality_probs.argmax(2) == label).float().mean() > 0.8
    torch.testing.assert_close(clean.modality_probs.sum(2), torch.ones(3, 400))
    for number in range(3):
        spoilt = uq(*swapped((*views, label), number))
        assert sp.metrics.auroc(clean.conflict, spoilt.conflict) > 0.9
        assert (spoilt.blamed == number).float().mean() > 0.8


def test_a_modality_of_noise_gets_no_blame_and_is_told():
    with pytest.warns(SplitPointWarning, match="knowledge of 'middle'"):
        uq = fitted(deaf=("middle",))
    assert uq(*sample(seed=2, deaf=("middle",))[:3]).blame[:, 1].abs().max() < 1e-6
    assert [check.verdict for check in uq.checks].count("warn") == 1


def test_thresholds_percentiles_and_parts(uq):
    held_out, new = sample(400, seed=3), sample(400, seed=4)
    uq.set_threshold(held_out, quantile=0.9)
    out = uq.predict(DataLoader(TensorDataset(*new), batch_size=64))
    assert len(out) == 400
    assert 0.02 < out.flagged.float().mean() < 0.2
    assert 30 < out.percentile.median() < 70
    assert uq(*swapped(new, 0)).flagged.float().mean() > 0.6
    part = out[[5, 7]]
    torch.testing.assert_close(part.modality_probs, out.modality_probs[:, [5, 7]])
    again = uq.set_threshold(uq.predict(held_out), quantile=0.9)
    torch.testing.assert_close(again(*new[:3]).flagged, out.flagged)


def test_a_missing_modality_is_left_out_and_said(uq):
    left, _, right, _ = sample(seed=2)
    out = uq(left, None, right)
    assert out.missing.tolist() == [[False, True, False]] * len(left)
    assert out.blame[:, 1].abs().max() < 1e-6
    torch.testing.assert_close(out.modality_probs[1], torch.full((240, 4), 0.25))
    torch.testing.assert_close(out.blame[:, 0], out.conflict, atol=1e-5, rtol=1e-5)
    whole = uq(*sample(seed=2)[:3])
    assert not whole.missing.any()
    torch.testing.assert_close(out.modality_probs[0], whole.modality_probs[0])
    with pytest.raises(LayerError, match="at least one"):
        uq._compared([None, None, None], torch.zeros(2, 4))


class Silent(Fusion):
    """A network whose branches never run."""

    def forward(self, left=None, middle=None, right=None):
        return torch.zeros(len(left), 4)


def test_branches_that_do_not_run_or_exist_are_refused():
    with pytest.raises(LayerError, match="to run on every batch"):
        fitted(Silent())
    with pytest.raises(LayerError, match="none called"):
        fitted(branches={"left": "left.features", "right": "up"})
    with pytest.raises(SettingsError, match="different layers"):
        fitted(branches={"left": "left.features", "right": "left.features"})


def test_the_model_stays_as_it_was_and_names_or_modules_are_the_same():
    model = network().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    by_module = fitted(model, branches={"left": model.left.features, "middle": model.middle, "right": model.right.head})
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    by_name = fitted(model, branches={"left": "left.features", "middle": "middle", "right": "right.head"})
    new = sample(seed=2)[:3]
    assert torch.equal(by_module(*new).conflict, by_name(*new).conflict)
    assert not any(len(module._forward_hooks) for module in model.modules())


def test_modalities_and_rows_may_come_in_any_order(uq):
    backwards = fitted(branches=dict(reversed(PLACES.items())))
    new = sample(seed=2)[:3]
    one, other = uq(*new), backwards(*new)
    torch.testing.assert_close(other.blame.flip(1), one.blame, atol=1e-4, rtol=1e-4)
    order = torch.randperm(240, generator=torch.Generator().manual_seed(0))
    shuffled = uq(*(view[order] for view in new))
    torch.testing.assert_close(shuffled.blame, one.blame[order], atol=1e-5, rtol=1e-5)
    assert torch.equal(fitted()(*new).conflict, one.conflict)


def test_without_calibration_rows_it_fits_and_says_what_that_means():
    method = sp.Agreement(branches=PLACES)
    uq = method.fit(network(), sample(), groups=torch.arange(240) // 4, progress=False)
    verdicts = {check.name: check.verdict for check in uq.checks}
    assert verdicts["calibration rows"] == "unknown"
    new = sample(seed=2)
    assert sp.metrics.auroc(uq(*new[:3]).conflict, uq(*swapped(new, 1)).conflict) > 0.9


def test_calibration_rows_that_are_training_rows_are_told():
    with pytest.warns(SplitPointWarning, match="training rows"):
        sp.Agreement(branches=PLACES).fit(network(), sample(), calibration=sample(), progress=False)


def test_two_classes_one_logit_two_modalities_and_ignored_labels():
    class Binary(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 5), nn.Linear(3, 5)
            self.last = nn.Linear(10, 1)

        def forward(self, a, b):
            return self.last(torch.cat([self.a(a), self.b(b)], 1))

    a, b, _, label = sample(200, classes=2)
    label[:20] = -100
    uq = sp.Agreement(branches={"a": "a", "b": "b"}).fit(Binary(), (a, b, label), progress=False)
    out = uq(a, b)
    assert out.modality_probs.shape == (2, 200, 2)
    torch.testing.assert_close(out.blame[:, 0], out.blame[:, 1])
    torch.testing.assert_close(out.blame[:, 0], out.conflict)


def test_classes_without_rows_have_no_probability():
    data = sample(200, classes=3)
    model = network(classes=6)
    held = sample(100, classes=2, seed=1)
    uq = sp.Agreement(branches=PLACES).fit(model, data, calibration=held, progress=False)
    probs = uq(*data[:3]).modality_probs
    assert probs.shape == (3, 200, 6)
    assert probs[..., 3:].abs().max() == 0
    assert (probs.argmax(2) == data[3]).float().mean() > 0.7


class Sensors(nn.Module):
    """A map, a sequence and named inputs."""

    def __init__(self):
        super().__init__()
        self.image_net = nn.Conv2d(1, 8, 3, padding=1)
        self.text_net = nn.Linear(4, 8)
        self.last = nn.Linear(16, 3)

    def forward(self, image=None, text=None):
        joined = torch.cat([self.image_net(image).mean((2, 3)), self.text_net(text).mean(1)], 1)
        return {"loss": joined.sum(), "answer": self.last(joined)}


def test_calls_of_one_encoder_are_modalities_too():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.last = nn.Linear(3, 16), nn.Linear(16, 4)

        def forward(self, one, other):
            return self.last(self.encoder(one).relu() + self.encoder(other).relu())

    left, middle, _, label = sample()
    places = {"one": "encoder@0", "other": "encoder@1"}
    uq = sp.Agreement(branches=places).fit(Pair(), (left, middle, label), progress=False)
    one, other = uq(left, middle).modality_probs
    assert not torch.equal(one, other)
    assert (other.argmax(1) == label).float().mean() > 0.7


def test_maps_sequences_and_named_inputs():
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(150) % 3
    image = torch.randn(150, 1, 6, 5, generator=generator) + label.reshape(-1, 1, 1, 1)
    text = torch.randn(150, 7, 4, generator=generator) - 2 * label.reshape(-1, 1, 1)
    data = {"image": image, "text": text, "labels": label}
    method = sp.Agreement(branches={"image": "image_net", "text": "text_net"}, output_key="answer")
    uq = method.fit(Sensors(), data, progress=False)
    assert uq(image=image, text=text).modality_probs.shape == (2, 150, 3)
    spoilt = uq.predict({"image": image, "text": text.roll(1, 0)})
    assert sp.metrics.auroc(uq.predict(data).conflict, spoilt.conflict) > 0.9


def test_it_is_saved_and_loaded(uq, tmp_path):
    path, new = tmp_path / "agreement.safetensors", sample(seed=2)[:3]
    uq.set_threshold(sample(seed=3))
    uq.save(path)
    again = sp.load(path, network())
    assert isinstance(again, sp.AgreementPredictor)
    one, other = uq(*new), again(*new)
    assert torch.equal(one.conflict, other.conflict)
    assert torch.equal(one.flagged, other.flagged)
    assert again.checks == uq.checks
    assert again.method == uq.method
    with pytest.raises(StorageError, match="weights differ"):
        sp.load(path, network(seed=1))
    assert torch.isfinite(sp.load(path, network(seed=1), strict=False)(*new).conflict).all()
    with pytest.raises(StorageError, match="trained base model"):
        sp.load(path)


def test_several_fits_at_once():
    both = sp.Agreement(branches=PLACES).fit_many([network(), network(seed=1)], [sample(), sample()], progress=False)
    new = sample(seed=2)[:3]
    assert not torch.equal(both[0](*new).conflict, both[1](*new).conflict)


def test_bad_settings_and_data_are_refused(uq):
    for branches in ({"one": "left"}, ["left", "right"], {"one": "left", "two": 3}):
        with pytest.raises(SettingsError, match="Expected"):
            sp.Agreement(branches=branches)
    with pytest.raises(SettingsError, match="doubt"):
        sp.Agreement(branches=PLACES, doubt=0.0)
    method, data = sp.Agreement(branches=PLACES), sample()
    with pytest.raises(SettingsError, match="trained"):
        method.fit(network, data, progress=False)
    with pytest.raises(DataError, match="two classes"):
        method.fit(network(), (*data[:3], torch.zeros(240, dtype=torch.long)), progress=False)
    with pytest.raises(DataError, match="two groups"):
        method.fit(network(), data, groups=torch.zeros(240), progress=False)
    with pytest.raises(DataError, match="labels from 0"):
        method.fit(network(), (*data[:3], data[3] + 5), progress=False)
    with pytest.raises(DataError, match="finite"):
        method.fit(network(), (data[0] * torch.nan, *data[1:]), progress=False)
    with pytest.raises(SettingsError, match="recorded rows"):
        method.fit_rows(sp.Recording.of(sp.Classification(), data[0], torch.randn(240, 4), data[3]))
    softmax = sp.baselines.Softmax().fit(network(), data, progress=False)
    with pytest.raises(DataError, match="AgreementPrediction"):
        uq.set_threshold(softmax(*data[:3]))
    maps, x = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 1)), torch.randn(8, 1, 3, 3)
    with pytest.raises(ShapeError, match="one answer for each row"):
        sp.Agreement(branches={"a": "0", "b": "1"}).fit(maps, (x, x[:, 0].long().clamp(0, 3)), progress=False)


def test_few_rows_of_a_class_are_told():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sp.Agreement(branches=PLACES).fit(network(), sample(8), progress=False)
    assert any("rows of a class" in str(warning.message) for warning in caught)
