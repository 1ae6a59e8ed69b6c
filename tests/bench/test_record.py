"""Records on disk: what was written is read, whatever an interruption left of the rest."""

import dataclasses
import json
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitpoint.bench.record import RECORDS, Cell, Journal, Record, parse, read_records, versions
from splitpoint.errors import DataError


def record(trial=0, stack=(0, 1), method="gaussian", seed=0, network="", **parts):
    cell = Cell("uci", "paper", "clean", "yacht", method, network=network)
    return Record(**cell._asdict(), trial=trial, stack=stack, seed=seed, **{"metrics": {"rmse": trial + 0.5}} | parts)


def stack_of(*trials, **parts):
    return [record(trial, trials, **parts) for trial in trials]


def text_of(records):
    return "".join(one.line() for one in records)


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path)


# One record


def test_a_record_comes_back_as_it_was():
    whole = record(
        timing={"train_cpu_s": 1.25},
        settings={"epochs": 3, "tau": "input"},
        error="ValueError: no",
        versions=versions(),
    )
    assert parse(whole.line()) == whole
    assert whole.line().count("\n") == 1


def test_a_record_knows_its_cell():
    assert record().cell == ("uci", "paper", "clean", "yacht", "gaussian", "", "")
    assert record(network="lenet").cell == ("uci", "paper", "clean", "yacht", "gaussian", "", "lenet")


# Lines of older versions


def older(method="gaussian", dataset="yacht", metrics=None, settings=None):
    """A line as it was written before lines had a format and records a network."""
    values = json.loads(record(method=method).line()) | {"dataset": dataset}
    del values["format"], values["network"]
    return json.dumps(values | {"metrics": metrics or {}, "settings": settings or {}})


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("splitpoint", "splitpoint_paper"),
        ("splitpoint_calibrated", "splitpoint_paper_calibrated"),
        ("splitpoint_default", "splitpoint"),
        ("splitpoint_default_calibrated", "splitpoint_conformal"),
        ("splitpoint_conformal", "splitpoint_conformal"),
        ("splitpoint_layers", "splitpoint_layers"),
        ("gaussian", "gaussian"),
    ],
)
def test_older_ids_of_methods_are_those_of_today(before, now):
    found = parse(older(before))
    assert found.method == now
    assert parse(found.line()) == found


def test_older_names_of_metrics_and_settings_are_those_of_today():
    found = parse(
        older(metrics={"auroc_adv": 0.6, "auroc_adv_entropy": None, "ece": 0.1}, settings={"outside": "svhn"})
    )
    assert found.metrics == pytest.approx(
        {"auroc_adversarial": 0.6, "auroc_adversarial_entropy": math.nan, "ece": 0.1}, nan_ok=True
    )
    assert found.settings == {"ood": "svhn"}


def test_older_data_sets_are_told_from_their_networks():
    found = parse(older(dataset="cifar10/vgg16"))
    assert (found.dataset, found.network) == ("cifar10", "vgg16")
    assert (parse(older()).dataset, parse(older()).network) == ("yacht", "")


def test_lines_of_this_format_keep_their_names(journal):
    line = record(method="splitpoint", metrics={"auroc_adv": 0.5}).line()
    assert json.loads(line)["format"] == 2
    assert (parse(line).method, parse(line).metrics) == ("splitpoint", {"auroc_adv": 0.5})


def test_lines_of_a_format_that_is_not_known_are_skipped(journal):
    later = json.loads(record(0, (0,)).line()) | {"format": 3}
    journal.path.write_text(json.dumps(later) + "\n" + text_of(stack_of(1)))
    assert journal.read() == stack_of(1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_lacks_is_null_on_disk_and_nan_in_memory(value):
    line = record(metrics={"rmse": value, "picp": 0.9}, timing={"s": value}).line()
    assert json.loads(line)["metrics"] == {"picp": 0.9, "rmse": None}
    found = parse(line)
    assert math.isnan(found.metrics["rmse"])
    assert math.isnan(found.timing["s"])
    assert found.metrics["picp"] == 0.9


def test_nan_in_nested_settings_is_null_too():
    assert json.loads(record(settings={"a": [1.0, math.nan], "b": {"c": math.inf}}).line())["settings"] == {
        "a": [1.0, None],
        "b": {"c": None},
    }


# Appending


def test_records_are_read_in_the_order_in_which_they_were_written(journal):
    journal.append(stack_of(0, 1))
    journal.append(stack_of(0, 1, method="laplace"))
    assert [(one.method, one.trial) for one in journal.read()] == [
        ("gaussian", 0), ("gaussian", 1), ("laplace", 0), ("laplace", 1),
    ]  # fmt: skip


def test_the_folder_is_made(tmp_path):
    Journal(tmp_path / "a" / "b").append(stack_of(0))
    assert (tmp_path / "a" / "b" / RECORDS).is_file()


def test_a_stack_is_one_write_and_then_on_the_disk(journal, monkeypatch):
    calls, write, sync = [], os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda *args: (calls.append("write"), write(*args))[1])
    monkeypatch.setattr(os, "fsync", lambda *args: (calls.append("sync"), sync(*args))[1])
    journal.append(stack_of(0, 1, 2))
    assert calls == ["write", "sync"]


def test_a_disk_that_is_full_is_an_error(journal, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:10]))
    with pytest.raises(DataError, match=r"Expected to write \d+ bytes to .*records.jsonl, but only 10 fitted"):
        journal.append(stack_of(0, 1))
    monkeypatch.undo()
    journal.append(stack_of(0, 1))
    assert journal.read() == stack_of(0, 1)


def test_writing_after_a_torn_line_starts_a_new_one(journal):
    journal.append(stack_of(0, 1))
    torn = text_of(stack_of(0, 1, method="laplace"))[:-20]
    with open(journal.path, "a") as file:
        file.write(torn)
    journal.append(stack_of(0, 1, method="laplace"))
    assert journal.read() == stack_of(0, 1) + stack_of(0, 1, method="laplace")
    assert journal.path.read_text().count("\n") == 2 + 1 + 1 + 2


# Reading what an interruption left


def test_a_torn_last_line_does_not_count_and_nor_does_its_stack(journal):
    whole, torn = text_of(stack_of(0, 1)), text_of(stack_of(2, 3))
    journal.path.write_text(whole + torn[:-5])
    assert journal.read() == stack_of(0, 1)


def test_a_stack_that_lost_a_whole_line_does_not_count(journal):
    journal.path.write_text(text_of(stack_of(0, 1)) + text_of(stack_of(2, 3)[:1]))
    assert [one.trial for one in journal.read()] == [0, 1]


def test_a_stack_that_was_torn_and_then_written_whole_counts_once(journal):
    journal.path.write_text(text_of(stack_of(0, 1)[:1]) + text_of(stack_of(0, 1)))
    assert journal.read() == stack_of(0, 1)


@given(
    cut=st.integers(0, 4000), junk=st.sampled_from(["", "\n", "{}\n", "null\n", "[1]\n", "\x00\xff", '{"suite": 1}\n'])
)
def test_any_cut_leaves_whole_stacks_only(tmp_path_factory, cut, junk):
    journal = Journal(tmp_path_factory.mktemp("cut"))
    stacks = [stack_of(0, 1), stack_of(2), stack_of(0, 1, 2, method="laplace")]
    data = "".join(map(text_of, stacks)).encode()
    journal.path.write_bytes(data[:cut] + junk.encode("latin-1"))
    found = journal.read()
    ends = [len("".join(map(text_of, stacks[: n + 1])).encode()) for n in range(3)]
    whole = [one for stack, end in zip(stacks, ends, strict=True) if end <= cut for one in stack]
    late = [
        one
        for stack, end in zip(stacks, ends, strict=True)
        if cut == end - 1 and junk[:1] in ("", "\n")
        for one in stack
    ]
    assert found in (whole, whole + late)  # without its newline alone, a last line is still whole


@pytest.mark.parametrize(
    "line", ["", "nonsense", "{", "null", "3", "[]", "{}", '{"stack": 1}', '{"stack": [], "metrics": []}', "\x00"]
)
def test_lines_that_are_no_records_are_skipped(journal, line):
    journal.path.write_text(text_of(stack_of(0)) + line + "\n" + text_of(stack_of(1)))
    assert journal.read() == stack_of(0) + stack_of(1)


@pytest.mark.parametrize(
    "change", [{"metrics": {"rmse": "abc"}}, {"versions": None}, {"settings": 3}, {"timing": {"train_cpu_s": []}}]
)
def test_records_whose_parts_are_of_another_kind_are_skipped(journal, change):
    odd = json.dumps(json.loads(record(2, (2,)).line()) | change) + "\n"
    journal.path.write_text(text_of(stack_of(0)) + odd)
    assert journal.read() == stack_of(0)


def test_bytes_that_are_no_text_are_skipped(journal):
    journal.path.write_bytes(text_of(stack_of(0)).encode() + b"\xff\xfe\x80\n" + text_of(stack_of(1)).encode())
    assert journal.read() == stack_of(0) + stack_of(1)


def test_a_record_with_a_field_of_another_version_is_skipped(journal):
    later = json.loads(record(0, (0,)).line()) | {"unheard_of": 1}
    strange = json.loads(record(0, (0,)).line()) | {"suite": ["uci"]}
    journal.path.write_text(json.dumps(later) + "\n" + json.dumps(strange) + "\n" + text_of(stack_of(1)))
    assert journal.read() == stack_of(1)


def test_of_one_trial_the_first_record_counts(journal):
    first, second = record(0, (0,), metrics={"rmse": 1.0}), record(0, (0,), metrics={"rmse": 2.0})
    other_stack = record(0, (0, 1), metrics={"rmse": 3.0})
    journal.append([first])
    journal.append([second])
    journal.append([other_stack, record(1, (0, 1))])
    assert journal.read() == [first, record(1, (0, 1))]


@pytest.mark.parametrize("stack", [(0,), (0, 1)], ids=["alone", "in a stack"])
def test_a_success_counts_in_place_of_a_failure(journal, stack):
    failed = [record(trial, (trial,), error="it broke") for trial in stack]
    again = stack_of(*stack)
    for part in ([failed], [again], [failed], [again]):
        journal.append(*part)
    assert journal.read() == again


def test_other_seeds_and_variants_are_other_trials(journal):
    records = [record(0, (0,)), record(0, (0,), seed=1), dataclasses.replace(record(0, (0,)), variant="width=5")]
    journal.append(records)
    assert journal.read() == records


# Folders without results


def test_a_missing_folder_has_no_records(tmp_path):
    assert Journal(tmp_path / "nowhere").read() == []


@pytest.mark.parametrize("content", ["", "torn"])
def test_a_file_without_records_is_not_called_missing(tmp_path, content):
    (tmp_path / RECORDS).write_text(content)
    with pytest.raises(DataError, match=r"records.jsonl, but none of its lines holds one; restore the file, or delete"):
        read_records(tmp_path)


def test_a_folder_without_results_says_what_to_run(tmp_path):
    with pytest.raises(
        DataError, match=r"^Expected results in .*, but found no records.jsonl there; run `splitpoint bench`"
    ):
        read_records(tmp_path)


def test_a_folder_with_results_gives_them(journal, tmp_path):
    journal.append(stack_of(0, 1))
    assert read_records(tmp_path) == stack_of(0, 1)


def test_versions_name_what_results_depend_on():
    assert set(versions()) == {"numpy", "python", "source", "splitpoint", "torch"}
    assert all(isinstance(version, str) for version in versions().values())
