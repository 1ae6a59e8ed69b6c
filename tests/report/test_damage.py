"""Lines that anything happened to: left out and told, and the page is there all the same."""

import base64
import copy
import json
from pathlib import Path

import pytest

from splitpoint import cli, report
from splitpoint.bench.record import RECORDS, Journal

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SUITES = sorted(path.name for path in RESULTS.iterdir())
FILES = sorted(path.relative_to(RESULTS).as_posix() for path in RESULTS.glob("*/*.jsonl"))
LINES = 40
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(16)).decode()


def nested(depth):
    return "[" * depth + "]" * depth


HOSTILE = [
    *("null", "true", "0", "-1", "1.5", "1e308", "-1e308", "1e400", "NaN", "-Infinity", str(10**400), "1" * 5000),
    *(
        '""',
        '"text"',
        '"\\u0000"',
        '"\\ud800"',
        '"\\ufeff"',
        '"\\u202e<script>|`\\n"',
        '"</script>"',
        json.dumps("x" * 9000),
    ),
    *("[]", "[1]", "[null]", '["a"]', "[[]]", "{}", '{"a": 1}', '{"a": null}', '{"a": []}', '{"rmse": 1e308}'),
    *(
        '{"rmse": "1"}',
        '{"\\ud800": 1}',
        '{"epochs": {"a": "b"}}',
        '{"epochs": [1, "\\ud800"]}',
        nested(12),
        nested(5000),
    ),
]
"""JSON of values that a field should not have, or that make trouble where it may."""


def some(name):
    """The first lines of a file of stored results, as many as there are for a few whole stacks."""
    return (RESULTS / name).read_text(encoding="utf-8").splitlines()[:LINES]


def places(value, way=()):
    """The ways to everything in a value of JSON, of lists to the first."""
    yield way
    parts = value.items() if isinstance(value, dict) else enumerate(value[:1] if isinstance(value, list) else ())
    for key, part in parts:
        yield from places(part, (*way, key))


def shrunk(value):
    """The same with one of every list of images or groups of them, and small images."""
    if isinstance(value, dict):
        return {key: shrunk(part) for key, part in value.items()}
    if isinstance(value, list):
        return [shrunk(part) for part in (value[:1] if value and isinstance(value[0], dict) else value)]
    return PNG if isinstance(value, str) and len(value) > 1000 else value


def with_at(value, way, new):
    """The text of a value with another JSON text at a place of it."""
    changed, mark = copy.deepcopy(value), "here it is exchanged"
    if not way:
        return new
    inner = changed
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = mark
    return json.dumps(changed).replace(json.dumps(mark), new)


def without(value, way):
    changed = copy.deepcopy(value)
    inner = changed
    for key in way[:-1]:
        inner = inner[key]
    del inner[way[-1]]
    return json.dumps(changed)


def mutants(line):
    """Lines that differ from a sound one in one place each, and count as trials, methods or data sets of their own."""
    sound = shrunk(json.loads(line))
    for way in places(sound):
        for number, new in enumerate([*HOSTILE, None]):
            value = copy.deepcopy(sound)
            if "stack" in value and way[:1] not in {("stack",), ("trial",)}:
                value |= {"trial": number, "stack": [number]}
            for name in ("dataset", "method") if "stack" not in value or number % 5 == 0 else ():
                if way[:1] != (name,):
                    value[name] = f"{name}{number}" + "-".join(map(str, way))
            if new is not None:
                yield with_at(value, way, new)
            elif way:
                yield without(value, way)
    line = json.dumps(sound)
    yield from (line[: len(line) // 2], line + line, "\ufeff" + line, line.replace('"', "\x00"), "{", nested(100_000))


def rendered(folder):
    """The page and the Markdown, which are whole."""
    told = report.write(folder, folder / "out")
    page, text = ((folder / "out" / name).read_text(encoding="utf-8") for name in ("index.html", "report.md"))
    assert page.rstrip().endswith("</html>")
    return told, page, text


@pytest.mark.parametrize("name", FILES)
def test_the_page_is_there_whatever_is_in_any_field(name, tmp_path):
    """All mutants at once, each beside the sound lines; those that nobody can tell from sound ones are drawn."""
    for other in (RESULTS / name).parent.glob("*.jsonl"):
        (tmp_path / other.name).write_text("\n".join(some(f"{other.parent.name}/{other.name}")) + "\n")
    path = tmp_path / Path(name).name
    sound = path.read_text()
    found = list(mutants(max(sound.splitlines(), key=len)))
    path.write_bytes((sound + "\n".join(found) + "\n").encode("utf-8", "surrogatepass"))
    told, page, text = rendered(tmp_path)
    for place in (told, page, text):
        assert f"of {path.name} ({LINES + 1 if len(sound.splitlines()) == LINES else ''}" in place


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
def test_the_page_is_there_for_any_line_alone(suite, tmp_path):
    """Sections take what they say of all trials from the first of a cell, which hides what others have."""
    line = some(f"{suite}/{RECORDS}")[0]
    for text in mutants(line):
        (tmp_path / RECORDS).write_bytes((text + "\n").encode("utf-8", "surrogatepass"))
        if Journal(tmp_path).read():
            rendered(tmp_path)


def test_a_line_of_many_megabytes_is_told_and_the_others_are_read(tmp_path, capsys):
    sound = [line for line in some(f"cubic/{RECORDS}") if json.loads(line)["stack"]]
    long = json.loads(sound[0]) | {"error": "x" * (2**24 + 7)}
    (tmp_path / RECORDS).write_text("\n".join(["\ufeff" + sound[0], json.dumps(long), *sound[1:], sound[0][:50]]))
    assert cli.main(["report", str(tmp_path)]) == 0
    assert f"Left out as damaged: 2 lines of {RECORDS} (2, {len(sound) + 2})" in capsys.readouterr().out
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / RECORDS).write_text("\n".join(sound) + "\n")
    assert Journal(tmp_path).read() == Journal(whole).read() != []


def test_sound_results_have_no_note():
    for suite in SUITES:
        assert report.left_out(RESULTS / suite) == []
