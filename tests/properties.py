"""How properties are tried: on the same examples every time, or, with `--hypothesis-profile=random`, on many others."""

from hypothesis import settings

FULL = 100
"""Examples of a property that asks for no other number."""

settings.register_profile("same", derandomize=True, deadline=None, max_examples=FULL)
settings.register_profile("random", deadline=None, max_examples=5 * FULL, print_blob=True)


def examples(count):
    """Try a costly property on `count` examples, and on as many times more as the profile asks for."""
    return settings(max_examples=count * settings().max_examples // FULL)
