"""What a suite declares: options that know their choices, and cells of methods and variants."""

import dataclasses
from pathlib import Path

import pytest

from splitpoint.bench.suite import Option, Request, Work
from splitpoint.bench.suites import SUITES
from splitpoint.errors import SettingsError

NAMES = ("one", "two", "three")
MANY = Option("names", "some names", lambda: NAMES)
SOME = Option("names", "some names", lambda: NAMES, ("two", "one"))
SINGLE = Option("name", "a name", lambda: NAMES, "two", many=False)
NUMBER = Option("threads", "a number", None, 1, False, int)


@pytest.mark.parametrize(
    ("option", "given", "found"),
    [
        (MANY, None, ["one", "two", "three"]),
        (MANY, ["three", "one", "three"], ["one", "three"]),
        (SOME, None, ["one", "two"]),
        (SINGLE, None, "two"),
        (SINGLE, "three", "three"),
        (NUMBER, None, 1),
        (NUMBER, 5, 5),
        (Option("ood", "", lambda: NAMES, None), None, None),
        (Option("cache", "", None, None, False, Path), Path("here"), Path("here")),
    ],
)
def test_values_come_in_the_order_of_the_choices(option, given, found):
    assert option.checked(given) == found


@pytest.mark.parametrize(
    ("option", "given", "message"),
    [
        (MANY, ["four", "one", "five"], r"Expected names among one, two, three, but got four, five\."),
        (SINGLE, "four", r"Expected name to be one of one, two, three, but got 'four'\."),
        (NUMBER, 0, r"Expected threads >= 1, but got 0\."),
    ],
)
def test_values_that_are_not_allowed_are_told_with_those_that_are(option, given, message):
    with pytest.raises(SettingsError, match=message):
        option.checked(given)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (MANY, "some names: one, two, three (default: all)"),
        (SOME, "some names: one, two, three (default: two one)"),
        (SINGLE, "a name: one, two, three (default: two)"),
        (NUMBER, "a number (default: 1)"),
        (Option("cache", "a folder", None, None, False, Path), "a folder"),
    ],
)
def test_help_tells_choices_and_default(option, text):
    assert option.described() == text


def test_work_of_a_request_has_its_seed_and_epochs():
    request = Request("uci", Path("out"), 3, 7, {"noise": ["clean"]})
    assert request["noise"] == ["clean"]
    work = request.work(dataset="yacht", group="gaussian", methods=("gaussian",), noise="trimodal")
    assert work == Work("uci", "paper", "trimodal", "yacht", "gaussian", ("gaussian",), seed=3, epochs=7)
    assert dataclasses.replace(work, trials=(0, 4)).seeds == [3000, 3004]


def test_labels_tell_the_place_the_group_and_the_noise():
    work = Work("images", "short", "clean", "mnist", "post_hoc", ("softmax",), network="lenet")
    assert work.label == "mnist/lenet post_hoc"
    assert dataclasses.replace(work, network="", noise="trimodal").label == "mnist post_hoc trimodal"


def test_variants_have_the_cell_of_their_method():
    work = Work("uci-ablation", "paper", "clean", "wine", "post_hoc", ("hidden_layers=2",))
    assert SUITES["uci-ablation"].cell(work, "hidden_layers=2") == (
        *("uci-ablation", "paper", "clean", "wine", "splitpoint_paper", "hidden_layers=2", ""),
    )


@pytest.mark.parametrize("name", SUITES)
def test_suites_are_known_by_their_names_and_say_what_they_are(name):
    suite = SUITES[name]
    assert suite.name == name
    assert suite.title
    assert suite.help
    assert suite.trials >= 1
    assert len({option.name for option in suite.options}) == len(suite.options)
    assert suite.chosen({}).keys() == {option.name for option in suite.options}
