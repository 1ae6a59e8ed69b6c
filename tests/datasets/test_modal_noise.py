"""Noise laws on rows with several modalities: what changes, how much of it, and what stays."""

import pytest
import torch

from splitpoint.datasets.modal_noise import conflict, diversity, kind_of, label, missing, plain_features, sample
from splitpoint.datasets.modal_rows import ModalRows
from splitpoint.errors import SettingsError, ShapeError

EACH = 40


def rows(classes=3, each=EACH):
    """Vectors and texts near their class; images and sounds at random. The text and first column name the row."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(each)
    count = len(labels)
    vector = 10.0 * labels[:, None] + torch.randn(count, 4, generator=generator)
    return ModalRows(
        {
            "image": torch.rand(count, 3, 8, 8, generator=generator),
            "audio": torch.rand(count, 1, 8, 8, generator=generator),
            "text": tuple(f"row{place} class{label} words here" for place, label in enumerate(labels.tolist())),
            "sensor": vector,
        },
        labels,
        torch.arange(count) // 2,
    )


def names(found):
    """The rows that texts came from."""
    return [int(text.split()[0].removeprefix("row")) for text in found.inputs["text"]]


def same(a, b, modality):
    one, other = a.inputs[modality], b.inputs[modality]
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def unchanged(a, b, *modalities):
    return all(same(a, b, name) for name in modalities)


# Conflict and missing modalities


def test_a_lying_modality_is_of_another_class_and_the_rest_stays():
    before = rows()
    after = conflict(before, "text", seed=1)
    sources = torch.tensor(names(after))
    assert (before.labels[sources] != before.labels).all()
    assert torch.equal(after.labels, before.labels)
    assert torch.equal(after.groups, before.groups)
    assert unchanged(before, after, "image", "audio", "sensor")
    assert names(conflict(before, "text", seed=1)) == names(after) != names(conflict(before, "text", seed=2))
    vectors = conflict(before, "sensor").inputs["sensor"]
    assert ((vectors[:, 0] / 10).round() != before.labels).float().mean() > 0.95


def test_every_row_of_another_class_is_as_likely():
    before = rows(classes=2, each=3)
    before = before.at([0, 1, 3, 4, 5])
    found = [names(conflict(before, "text", seed=seed)) for seed in range(600)]
    first = torch.bincount(torch.tensor([each[0] for each in found]), minlength=6)
    last = torch.bincount(torch.tensor([each[4] for each in found]), minlength=6)
    assert first[[0, 1, 2]].sum() == last[[2, 3, 4, 5]].sum() == 0
    assert (first[[3, 4, 5]] > 150).all()
    assert (last[[0, 1]] > 240).all()


def test_rows_of_one_class_cannot_lie():
    with pytest.raises(SettingsError, match="rows of two classes or more to exchange inputs, but got 1"):
        conflict(rows(classes=1), "text")


def test_a_missing_modality_is_gone():
    before = rows()
    after = missing(before, "audio")
    assert after.modalities == ("image", "text", "sensor")
    assert unchanged(before, after, *after.modalities)
    assert before.modalities == ("image", "audio", "text", "sensor")
    with pytest.raises(SettingsError, match="a modality among image, text, sensor, but got 'audio'"):
        missing(after, "audio")
    with pytest.raises(SettingsError, match="another modality than text, but got rows with no other"):
        missing(ModalRows({"text": ("a",)}, torch.tensor([0]), torch.tensor([0])), "text")


# Diversity


def test_lost_inputs_are_replaced_within_their_class():
    before = rows()
    after = diversity(before, 0.75, seed=3)
    sources = torch.tensor(names(after))
    assert torch.equal(before.labels[sources], before.labels)
    assert [len(set(sources[before.labels == each].tolist())) for each in range(3)] == [10, 10, 10]
    kept = sources == torch.arange(len(before))
    assert kept.sum() == 30
    assert torch.equal(after.labels, before.labels)
    spread = [found.inputs["sensor"].reshape(3, EACH, 4).std(1).mean() for found in (before, after)]
    assert spread[1] < 0.8 * spread[0]
    assert len(after.inputs["image"].flatten(1).unique(dim=0)) == 30


def test_what_stays_is_near_the_centre_of_the_given_features():
    before = rows()
    distance = torch.arange(1.0, EACH + 1).repeat(3)
    around = torch.cat([torch.stack([distance, -distance], 1)])
    around[1::2] *= -1
    after = diversity(before, 0.5, modalities=["text"], features={"text": around})
    kept = torch.tensor(sorted({place % EACH for place in names(after)})).float()
    assert kept.median() < EACH / 2 - 4
    assert unchanged(before, after, "image", "audio", "sensor")
    with pytest.raises(ShapeError, match=r"features of text of shape \(120, D\), but got \(3, 2\)"):
        diversity(before, features={"text": around[:3]})


def test_no_share_changes_nothing_and_a_whole_share_leaves_one_input():
    before = rows()
    for law in (diversity, label, sample):
        after = law(before, 0.0)
        assert unchanged(before, after, *before.modalities)
        assert torch.equal(after.labels, before.labels)
    assert len(set(names(diversity(before, 1.0)))) == 3


# Labels


def test_a_share_of_the_labels_is_switched_to_the_nearest_class():
    before = rows(classes=4)
    after = label(before, 0.3, seed=2)
    switched = after.labels != before.labels
    assert switched.sum() == round(0.3 * 160)
    assert unchanged(before, after, *before.modalities)
    assert torch.equal(after.groups, before.groups)
    near = (after.labels - before.labels).abs()[switched]
    assert (near == 1).all()
    assert not torch.equal(label(before, 0.3, seed=3).labels, after.labels)
    assert (label(before, 1.0).labels != before.labels).all()


def test_the_distance_to_a_class_is_the_mean_of_the_five_nearest_rows():
    """Class 1 has one row very near and four far, class 2 five rows at a medium distance."""
    places = torch.tensor([0.0, 0.1, 9, 9, 9, 9, -3, -3, -3, -3, -3])
    found = ModalRows({"x": places[:, None]}, torch.tensor([0, *[1] * 5, *[2] * 5]), torch.arange(11))
    assert label(found, 1.0, features={"x": places[:, None]}).labels[0] == 2


def test_labels_of_one_class_cannot_be_switched():
    with pytest.raises(SettingsError, match="rows of two classes or more to switch labels between, but got 1"):
        label(rows(classes=1))


# Samples


@pytest.mark.parametrize("modality", ["image", "audio", "text", "sensor"])
def test_a_share_of_the_rows_of_one_modality_is_noisy(modality):
    before = rows()
    after = sample(before, 0.25, modalities=[modality], seed=4)
    others = [name for name in before.modalities if name != modality]
    assert unchanged(before, after, *others)
    pairs = zip(before.inputs[modality], after.inputs[modality], strict=True)
    noisy = torch.tensor([not torch.equal(a, b) if isinstance(a, torch.Tensor) else a != b for a, b in pairs])
    assert noisy.sum() == 30
    assert torch.equal(after.labels, before.labels)
    together = sample(before, 0.25, seed=4)
    assert same(after, together, modality)


def test_noise_stays_in_range_and_grows_with_severity():
    before = rows()
    for modality in ("image", "audio", "sensor"):
        given = before.inputs[modality]
        distance = [
            (sample(before, severity=severity).inputs[modality] - given).square().mean() for severity in (1, 3, 5)
        ]
        assert distance[0] < distance[1] < distance[2]
    found = sample(before, severity=5)
    for modality in ("image", "audio"):
        assert 0 <= found.inputs[modality].min() <= found.inputs[modality].max() <= 1
    noise = sample(before, severity=3).inputs["sensor"] - before.inputs["sensor"]
    assert noise.std(0) == pytest.approx(before.inputs["sensor"].std(0), rel=0.25)


def test_the_form_says_what_a_modality_is_unless_it_is_told():
    before = rows()
    assert [kind_of(each) for each in before.inputs.values()] == ["image", "sound", "text", "vector"]
    with pytest.raises(ShapeError, match=r"texts, vectors .*, but got a tensor of shape \(2, 3, 4\)"):
        kind_of(torch.zeros(2, 3, 4))
    grey = sample(before, kinds={"audio": "image"}).inputs["audio"]
    assert not torch.equal(grey, sample(before).inputs["audio"])
    with pytest.raises(SettingsError, match="'image' or 'sound' of modalities that are maps, but got 'image' for text"):
        sample(before, kinds={"text": "image"})


def test_settings_that_make_no_sense_are_refused():
    for law in (diversity, label, sample):
        for share in (-0.1, 1.5, float("nan")):
            with pytest.raises(SettingsError, match=rf"a share in \[0, 1\], but got {share}"):
                law(rows(), share)
    for severity in (0, 6):
        with pytest.raises(SettingsError, match=f"a severity of 1 to 5, but got {severity}"):
            sample(rows(), severity=severity)
    for law in (diversity, sample):
        with pytest.raises(SettingsError, match="a modality among image, audio, text, sensor, but got 'radar'"):
            law(rows(), modalities=["radar"])
    with pytest.raises(SettingsError, match="but got 'radar'"):
        conflict(rows(), "radar")
    for law in (diversity, label):
        with pytest.raises(SettingsError, match="but got 'radar'"):
            law(rows(), features={"radar": torch.zeros(120, 2)})


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    for law in (diversity, label, sample):
        law(rows())
    conflict(rows(), "text")
    assert torch.equal(torch.get_rng_state(), before)


def test_plain_features_tell_words_and_columns_apart():
    texts = plain_features(("the dog", "dog the", "a cat"))
    assert torch.equal(texts[0], texts[1])
    assert (texts @ texts[2]).tolist() == pytest.approx([0, 0, 1])
    vectors = plain_features(torch.tensor([[0.0, 5, 100], [2, 5, 300]]))
    assert vectors[1].tolist() == [2, 5, 3]
    assert plain_features(torch.zeros(2, 1, 4, 20)).shape == (2, 32)
