"""Rows of a trial: which are noisy, which are spoilt, and what texts become."""

import pytest
import torch

from luma_files import small_luma
from modal_files import small_three_modal, small_views
from splitpoint.bench.modal_trials import FUSED, NOISY, hashed_words, modal_trial
from splitpoint.datasets.entry import VARIABLE
from splitpoint.errors import SettingsError


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


def test_words_and_pairs_are_counted_by_their_hash():
    one, same, other, none = hashed_words(["Roll over MY 401k", "roll over, my 401k!", "over roll my 401k", "?"], 4096)
    assert torch.equal(one, same)
    assert one.norm() == pytest.approx(1)
    assert int((one > 0).sum()) == 7, "four words and three pairs"
    assert 0 < float(one @ other) < 1, "the same words in another order"
    assert float(none.norm()) == 0


def test_parts_do_not_share_rows_and_every_trial_is_another(data):
    small_views(data / "multiview" / "pie.npz")
    first, again, second = (modal_trial("pie", "clean", FUSED, number) for number in (0, 0, 1))
    assert first.train.digest() == again.train.digest() != second.train.digest()
    parts = [first.train, first.validation, first.calibration, first.test]
    groups = torch.cat([part.groups for part in parts])
    assert len(groups) == 680 == len(groups.unique())
    assert (first.classes, first.modalities, first.ood) == (68, ("intensity", "lbp", "gabor"), None)
    assert first.spoilt == {}


def test_one_modality_at_a_time_is_spoilt_in_the_test_rows_alone(data):
    small_views(data / "multiview" / "pie.npz")
    clean, lying, blind = (modal_trial("pie", name, FUSED, 0) for name in ("clean", "conflict", "missing"))
    assert clean.train.digest() == lying.train.digest() == blind.train.digest()
    for name in clean.modalities:
        for other in clean.modalities:
            same = torch.equal(lying.spoilt[name].inputs[other], clean.test.inputs[other])
            assert same == (other != name)
            assert (blind.spoilt[name].inputs[other] is None) == (other == name)
        assert torch.equal(lying.spoilt[name].labels, clean.test.labels)


@pytest.mark.parametrize("condition", NOISY)
def test_noise_is_in_rows_to_learn_from_and_in_test_rows(data, condition):
    small_views(data / "multiview" / "pie.npz")
    clean, noisy = (modal_trial("pie", name, FUSED, 0) for name in ("clean", condition))
    for part in ("train", "calibration", "test"):
        assert getattr(clean, part).digest() != getattr(noisy, part).digest()


def test_three_modalities_become_tensors_and_one_may_be_picked(data):
    small_three_modal(data / "three_modal_50.npz")
    whole = modal_trial("three_modal", "clean", FUSED, 0)
    assert whole.train.shapes == {"image": (3, 32, 32), "audio": (1, 48, 48), "text": (1024,)}
    assert len(whole.ood) > 0
    one = modal_trial("three_modal", "clean", "audio", 0)
    assert one.modalities == ("audio",)
    assert torch.equal(one.test.inputs["audio"], whole.test.inputs["audio"])
    with pytest.raises(SettingsError, match="modalities among image, audio, text, all, but got view0"):
        modal_trial("three_modal", "clean", "view0", 0)


def test_luma_is_read_from_its_files(data):
    small_luma(data)
    found = modal_trial("luma", "clean", FUSED, 0)
    assert found.train.shapes == {"image": (3, 32, 32), "audio": (1, 128, 128), "text": (1024,)}
    assert found.classes == 42
    assert len(found.ood) > 0
