"""Mistakes in texts."""

from random import Random

import pytest

from splitpoint.datasets import text_noise
from splitpoint.datasets.text_noise import LAWS, SHARES, spoilt

WORDS = ["please", "tell", "me", "how", "to", "roll", "over", "the", "money", "of", "my", "old", "account"]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_a_law_changes_as_many_words_as_it_is_told(law):
    for seed in range(20):
        found = law(WORDS, 3, Random(seed))
        if law is text_noise.lost_words:
            assert len(found) == len(WORDS) - 3
            rest = iter(WORDS)
            assert all(word in rest for word in found)
        elif law is text_noise.swapped_words:
            assert sorted(found) == sorted(WORDS)
        else:
            assert len(found) == len(WORDS)
            assert sum(a != b for a, b in zip(found, WORDS, strict=True)) <= 3


def test_keys_are_neighbours():
    assert {text_noise.keyboard(["a"], 1, Random(seed))[0] for seed in range(40)} == set("qwsz")
    assert set(text_noise._NEIGHBOURS["g"]) == set("fhtyvb")
    assert text_noise.keyboard(["77"], 1, Random(0)) == ["77"]


def test_letters_by_hand():
    assert text_noise.misread(["Solid"], 1, Random(0)) == ["5011d"]
    assert text_noise.swapped_letters(["ab", "c"], 2, Random(0)) == ["ba", "c"]
    assert text_noise.lost_letters(["a"], 1, Random(0)) == ["a"]
    assert text_noise.lost_words(["one"], 1, Random(0)) == ["one"]


def test_a_text_changes_where_it_can():
    for severity in range(1, len(SHARES) + 1):
        assert all(spoilt(" ".join(WORDS), severity, Random(seed)) != " ".join(WORDS) for seed in range(30))
    assert spoilt("a", 3, Random(0)) in {"q", "w", "s", "z"}
    assert (spoilt("", 3, Random(0)), spoilt("77", 3, Random(0)), spoilt("7", 3, Random(0))) == ("", "7", "7")


def test_severe_noise_changes_more_words():
    def changed(severity):
        found = [
            text_noise.misread(WORDS, max(1, round(SHARES[severity - 1] * len(WORDS))), Random(s)) for s in range(9)
        ]
        return sum(a != b for words in found for a, b in zip(words, WORDS, strict=True))

    assert changed(1) < changed(3) < changed(5)
