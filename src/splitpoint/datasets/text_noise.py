"""Mistakes in texts: slips on the keyboard, letters in the wrong order, left out or misread, words swapped or lost.

LUMA takes keyboard, spelling and scanning mistakes and translation there and back from a library; the laws here are our
own, without translation, which needs a model.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeAlias

Law: TypeAlias = Callable[[list[str], int, Random], list[str]]
"""What takes words, how many of them to change, and a source of chance, and returns words."""

SHARES = (0.1, 0.2, 0.4, 0.6, 0.8)
"""Shares of the words that change, by severity; LUMA's is 0.4."""

_KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_NEIGHBOURS = {
    key: keys[max(0, place - 1) : place]
    + keys[place + 1 : place + 2]
    + (_KEYS[line - 1][place : place + 2] if line else "")
    + (_KEYS[line + 1][max(0, place - 1) : place + 1] if line + 1 < len(_KEYS) else "")
    for line, keys in enumerate(_KEYS)
    for place, key in enumerate(keys)
}
"""Keys beside each one: every row stands half a key to the right of the one above."""

_LOOK_ALIKE = dict(zip("olisbzgqtecuvn", "01158299fcevun", strict=True))


def spoilt(text: str, severity: int, random: Random) -> str:
    """The text with one kind of mistake, drawn from those that change it; a text without words stays as it is."""
    words = text.split()
    if not words:
        return text
    count = max(1, round(SHARES[severity - 1] * len(words)))
    for law in random.sample(LAWS, len(LAWS)):
        found = law(words, count, random)
        if found != words:
            return " ".join(found)
    return text


def _each(words: list[str], count: int, random: Random, change: Callable[[str], str]) -> list[str]:
    """The words with `change` in `count` of them."""
    chosen = set(random.sample(range(len(words)), min(count, len(words))))
    return [change(word) if place in chosen else word for place, word in enumerate(words)]


def keyboard(words: list[str], count: int, random: Random) -> list[str]:
    """About a quarter of the letters of a word, one at least, become keys beside them."""

    def change(word: str) -> str:
        places = [place for place, letter in enumerate(word) if letter.lower() in _NEIGHBOURS]
        letters = list(word)
        for place in random.sample(places, min(len(places), 1 + len(word) // 4)):
            letters[place] = random.choice(_NEIGHBOURS[letters[place].lower()])
        return "".join(letters)

    return _each(words, count, random, change)


def swapped_letters(words: list[str], count: int, random: Random) -> list[str]:
    """Two neighbouring letters of a word change places."""

    def change(word: str) -> str:
        if len(word) < 2:
            return word
        place = random.randrange(len(word) - 1)
        return word[:place] + word[place + 1] + word[place] + word[place + 2 :]

    return _each(words, count, random, change)


def lost_letters(words: list[str], count: int, random: Random) -> list[str]:
    """A letter of a word of two or more is left out."""

    def change(word: str) -> str:
        place = random.randrange(len(word))
        return word[:place] + word[place + 1 :] if len(word) > 1 else word

    return _each(words, count, random, change)


def misread(words: list[str], count: int, random: Random) -> list[str]:
    """Letters become what a scanner takes them for, as o becomes 0."""

    def change(word: str) -> str:
        return "".join(_LOOK_ALIKE.get(letter, letter) for letter in word.lower())

    return _each(words, count, random, change)


def swapped_words(words: list[str], count: int, random: Random) -> list[str]:
    """Neighbouring words change places, `count` times."""
    found = list(words)
    for _ in range(count if len(words) > 1 else 0):
        place = random.randrange(len(words) - 1)
        found[place : place + 2] = found[place + 1], found[place]
    return found


def lost_words(words: list[str], count: int, random: Random) -> list[str]:
    """`count` words are left out; one at least stays."""
    gone = set(random.sample(range(len(words)), min(count, len(words) - 1)))
    return [word for place, word in enumerate(words) if place not in gone]


LAWS: tuple[Law, ...] = (keyboard, swapped_letters, lost_letters, misread, swapped_words, lost_words)
"""The kinds of mistakes."""
