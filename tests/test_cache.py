"""The feature cache: the same predictor from memory and from disk, resumed after a kill, refused when stale."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import splitpoint as sp
from splitpoint.cache import Table
from splitpoint.disk_table import DiskTable
from splitpoint.errors import CacheError, DataError
from splitpoint.files import digest, model_fingerprint

ROWS, SIZE = 40, 8
PROBED = 1
"""Batches on which a model runs to see that it behaves as it did, of at least 8 rows together."""
FINGERPRINT = 2
"""Runs of a model on a few made-up rows at every fit, which no cache has a part in."""


class Net(nn.Module):
    """A small model that counts its calls."""

    def __init__(self, outputs=1):
        super().__init__()
        self.first, self.second, self.fc = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, outputs)
        self.calls = 0

    def forward(self, x):
        self.calls += not torch.is_grad_enabled()
        return self.fc(self.second(self.first(x).relu()).relu())


class Pair(Net):
    """A model with two outputs of one shape."""

    def forward(self, x):
        return {"near": super().forward(x), "far": 5 - 3 * super().forward(x)}


class Dense(nn.Module):
    """A fully convolutional model."""

    def __init__(self):
        super().__init__()
        self.conv, self.out, self.calls = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 1, 1), 0

    def forward(self, x):
        self.calls += not torch.is_grad_enabled()
        return self.out(self.conv(x).relu())


class KilledError(Exception):
    """Stands for the kill of a process."""


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def batches(count=ROWS // SIZE, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count * SIZE, 3, generator=generator)
    y = x.sum(1, keepdim=True) + torch.randn(len(x), 1, generator=generator)
    return list(zip(x.split(SIZE), y.split(SIZE), strict=True))


def maps(count=3):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count * 2, 3, 5, 5, generator=generator)
    y = x.mean(1, keepdim=True) + torch.randn(count * 2, 1, 5, 5, generator=generator)
    return list(zip(x.split(2), y.split(2), strict=True))


def killed_after(data, count):
    yield from data[:count]
    raise KilledError


def fit(model, data, cache="ram", **settings):
    method = sp.SplitPointRegressor(**{"epochs": 2, "folds": 0, "cache": cache, "positions": 6} | settings)
    model.calls = 0
    fitted = method.fit(model, data, progress=False)
    model.calls -= FINGERPRINT
    return fitted


def assert_same(one, other):
    """Every fitted number is the same, and what could not be measured (NaN) is missing from both."""
    a, b = one.own_tensors(), other.own_tensors()
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=0, equal_nan=True, msg=name)
    assert (one.layer, one.layout, one.inputs) == (other.layer, other.layout, other.inputs)


# One table in memory, one on disk


@pytest.mark.parametrize(("build", "data"), [(Net, batches), (Dense, maps)], ids=["vectors", "maps"])
def test_memory_and_directory_give_the_same_predictor(build, data, tmp_path):
    model = build()
    assert_same(fit(model, data(), tmp_path / "cache"), fit(model, data()))


@pytest.mark.parametrize(("build", "data"), [(Net, batches), (Dense, maps)], ids=["vectors", "maps"])
def test_with_a_complete_cache_the_model_runs_on_the_first_batch_only(build, data, tmp_path):
    model = build()
    first = fit(model, data(), tmp_path)
    assert model.calls == len(data())
    again = fit(model, data(), str(tmp_path))
    assert model.calls == PROBED
    assert_same(again, first)
    other = fit(model, data(), tmp_path, epochs=3, confidence_level=0.8, learning_rate=1e-2)
    assert model.calls == PROBED
    assert not torch.equal(other.heads.trunk("mar").weights[0], first.heads.trunk("mar").weights[0])


def test_a_cache_serves_a_copy_of_the_model_and_data_in_another_form(tmp_path):
    model, data = Net(), batches()
    first = fit(model, data, tmp_path)
    twin = Net()
    twin.load_state_dict(model.state_dict())
    x, y = (torch.cat(part) for part in zip(*data, strict=True))
    for form in (DataLoader(TensorDataset(x, y), batch_size=SIZE), iter(data), [(a.numpy(), b) for a, b in data]):
        assert_same(fit(twin, form, tmp_path), first)
        assert twin.calls == PROBED


def test_classifier_and_calibration_data_are_cached_too(tmp_path):
    model = Net(3)
    x = torch.randn(40, 3)
    labels = torch.arange(40) % 3
    held_out = (torch.randn(30, 3), torch.arange(30) % 3)

    def classifier(cache):
        model.calls = 0
        method = sp.SplitPointClassifier(epochs=2, cache=cache)
        return method.fit(model, (x, labels), calibration=held_out, progress=False)

    first = classifier(tmp_path)
    assert model.calls == 2 + FINGERPRINT
    again = classifier(tmp_path)
    assert model.calls == 2 * PROBED + FINGERPRINT
    assert_same(again, first)
    assert_same(first, classifier("ram"))


def test_several_models_have_parts_of_their_own(tmp_path):
    models, data = [Net(), Net()], [batches(seed=1), batches(seed=2)]
    method = sp.SplitPointRegressor(epochs=2, folds=0, cache=tmp_path)
    first = method.fit_many(models, data, progress=False)
    calls = [model.calls for model in models]
    again = method.fit_many(models, data, progress=False)
    assert [model.calls for model in models] == [count + PROBED + FINGERPRINT for count in calls]
    for one, other in zip(first, again, strict=True):
        assert_same(one, other)
    assert not torch.equal(first[0].heads.center, first[1].heads.center)


# KilledError in the middle


@pytest.mark.parametrize("done", [0, 1, 3, 5])
@pytest.mark.parametrize(("build", "data"), [(Net, batches), (Dense, maps)], ids=["vectors", "maps"])
def test_a_killed_run_is_resumed_where_it_stopped(build, data, done, tmp_path):
    model, whole = build(), data()
    done = min(done, len(whole))
    with pytest.raises(KilledError):
        fit(model, killed_after(whole, done), tmp_path)
    assert model.calls == done
    resumed = fit(model, whole, tmp_path)
    assert model.calls == len(whole) - done + (PROBED if done else 0)
    assert_same(resumed, fit(model, whole))


def test_a_run_that_is_killed_twice_is_resumed(tmp_path):
    model, whole = Net(), batches()
    for done in (2, 4):
        with pytest.raises(KilledError):
            fit(model, killed_after(whole, done), tmp_path)
    resumed = fit(model, whole, tmp_path)
    assert model.calls == len(whole) - 4 + PROBED
    assert_same(resumed, fit(model, whole))


def damage_journal(folder):
    journal = folder / "journal.jsonl"
    journal.write_text(journal.read_text()[:-9])


def damage_columns(folder):
    for column in folder.glob("*.bin"):
        with open(column, "ab") as file:
            file.write(b"\x7f" * 13)


def damage_one_column(folder):
    with open(folder / "features.bin", "ab") as file:
        file.write(np.full(6 * SIZE, 7.0, dtype=np.float32).tobytes())


@pytest.mark.parametrize(
    ("damage", "lost"),
    [(damage_journal, 1), (damage_columns, 0), (damage_one_column, 0)],
    ids=["last journal line cut short", "bytes behind every column", "a batch in one column only"],
)
@pytest.mark.parametrize("done", [3, 5])
def test_what_was_half_written_is_dropped_and_made_again(damage, lost, done, tmp_path):
    model, whole = Net(), batches()
    with pytest.raises(KilledError):
        fit(model, killed_after(whole, done), tmp_path)
    damage(tmp_path / "train")
    resumed = fit(model, whole, tmp_path)
    assert model.calls == len(whole) - done + lost + PROBED
    assert_same(resumed, fit(model, whole))
    assert_same(fit(model, whole, tmp_path), resumed)
    assert model.calls == PROBED


def test_a_run_that_is_killed_before_its_first_rows_are_written_is_begun_again(tmp_path):
    model, whole = Net(), batches()
    with pytest.raises(KilledError):
        fit(model, killed_after(whole, 1), tmp_path)
    for path in (tmp_path / "train").iterdir():
        if path.name != "meta.json":
            path.unlink()
    assert_same(fit(model, whole, tmp_path), fit(model, whole))


def test_more_data_of_the_same_are_added(tmp_path):
    model, whole = Net(), batches()
    fit(model, whole[:3], tmp_path)
    assert_same(fit(model, whole, tmp_path), fit(model, whole))


def test_a_failing_model_leaves_a_cache_that_can_be_resumed(tmp_path):
    model, whole = Net(), batches()
    broken = [*whole[:2], (torch.zeros(SIZE, 4), torch.zeros(SIZE, 1)), *whole[2:]]
    with pytest.raises((RuntimeError, DataError)):
        fit(model, broken, tmp_path)
    assert_same(fit(model, whole, tmp_path), fit(model, whole))


# Stale


def files(cache):
    return {path: path.read_bytes() for path in (cache / "train").rglob("*") if path.is_file()}


def assert_refused(message, model, data, cache, **settings):
    before = files(cache)
    with pytest.raises(CacheError, match=message):
        fit(model, data, cache, **settings)
    assert files(cache) == before


def test_changed_weights_are_refused(tmp_path):
    model, data = Net(), batches()
    fit(model, data, tmp_path)
    with torch.no_grad():
        model.first.bias[0] += 1e-6
    expected = "Expected a feature cache of the same model, but .* delete it or name another directory"
    assert_refused(expected, model, data, tmp_path)
    assert model.calls == 0


def test_a_changed_buffer_is_refused(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    fit(model, batches(), tmp_path)
    model[1].running_mean += 1
    assert_refused("of the same model, but", model, batches(), tmp_path)


@pytest.mark.parametrize(
    "layer", ["second", "second:input", ["first", "second"], lambda x: x], ids=["name", "input", "list", "callable"]
)
def test_another_layer_is_refused(layer, tmp_path):
    model, data = Net(), batches()
    fit(model, data, tmp_path, layer="first")
    assert_refused("Expected a feature cache of the same layer, but", model, data, tmp_path, layer=layer)


def test_another_layer_is_refused_when_given_as_a_module(tmp_path):
    """Two layers of one kind and size print alike, but are not the same."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    fit(model, batches(), tmp_path, layer=model[0])
    assert_refused("Expected a feature cache of the same layer, but", model, batches(), tmp_path, layer=model[2])


def test_a_layer_given_as_a_module_is_found_again(tmp_path):
    model, data = Net(), batches()
    first = fit(model, data, tmp_path, layer=model.second)
    assert_same(fit(model, data, tmp_path, layer=model.second), first)
    assert model.calls == PROBED


def test_another_output_of_the_model_is_refused(tmp_path):
    model, data = Pair(), batches()
    fit(model, data, tmp_path, output_key="near")
    with pytest.raises(CacheError, match="output"):
        fit(model, data, tmp_path, output_key="far")


def test_another_number_of_positions_is_refused(tmp_path):
    model = Dense()
    fit(model, maps(), tmp_path, positions=6)
    assert_refused("of the same positions, but", model, maps(), tmp_path, positions=7)


def test_a_cache_of_the_other_task_is_refused(tmp_path):
    model, data = Net(2), [(x, (y > 0).long()[:, 0]) for x, y in batches()]
    sp.SplitPointClassifier(epochs=1, cache=tmp_path).fit(model, data, progress=False)
    with pytest.raises(CacheError, match="Expected a feature cache of the same context and positions and targets, but"):
        fit(model, batches(), tmp_path)
    with pytest.raises(CacheError, match="of the same targets, but"):
        sp.SplitPointClassifier(epochs=1, cache=tmp_path, ignore_index=-1).fit(model, data, progress=False)


def other_target(data):
    return [*data[:2], (data[2][0], data[2][1] + 1e-3), *data[3:]]


def other_input(data):
    return [*data[:2], (data[2][0].flip(0), data[2][1]), *data[3:]]


@pytest.mark.parametrize(
    ("change", "number"),
    [
        (lambda _: batches(seed=2), 0),
        (lambda data: data[::-1], 0),
        (other_target, 2),
        (other_input, 2),
        (lambda data: [(x.double(), y) for x, y in data], 0),
        (lambda data: [(torch.cat([x for x, _ in data]), torch.cat([y for _, y in data]))], 0),
    ],
    ids=["other data", "other order", "another target", "shuffled rows", "another type", "other batches"],
)
def test_other_data_are_refused_at_the_batch_that_differs(change, number, tmp_path):
    model, data = Net(), batches()
    fit(model, data, tmp_path)
    expected = rf"but batch {number} differs \(shuffled, augmented or other data\?\); pass the data in the same order"
    assert_refused(expected, model, change(data), tmp_path)


def test_fewer_batches_are_refused(tmp_path):
    model, data = Net(), batches()
    fit(model, data, tmp_path)
    expected = (
        "Expected 5 batches as recorded in .*, but the data ended after 3; pass the same data or delete the cache"
    )
    assert_refused(expected, model, data[:3], tmp_path)


# Damaged


@pytest.mark.parametrize(
    "text", ["", "{", "not json", "{}", "[]", "null", '{"format": 2}', "\x00\xff"], ids=lambda text: repr(text)
)
def test_damaged_facts_are_refused(text, tmp_path):
    model, data = Net(), batches()
    fit(model, data, tmp_path)
    (tmp_path / "train" / "meta.json").write_bytes(text.encode("latin1"))
    with pytest.raises(CacheError, match=r"Expected a feature cache in .*, but it is damaged; delete it"):
        fit(model, data, tmp_path)


def test_another_format_is_refused(tmp_path):
    model, data = Net(), batches()
    fit(model, data, tmp_path)
    path = tmp_path / "train" / "meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    assert_refused("Expected a feature cache of format 2 in .*, but got 99", model, data, tmp_path)


def test_a_damaged_journal_is_refused(tmp_path):
    model, data = Net(), batches()
    fit(model, data, tmp_path)
    path = tmp_path / "train" / "journal.jsonl"
    first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first[:-5] + "\n", *rest]))
    assert_refused("but it is damaged; delete it", model, data, tmp_path)


def test_a_column_that_lost_rows_is_refused(tmp_path):
    model, data = Net(), batches()
    fit(model, data, tmp_path)
    path = tmp_path / "train" / "residual.bin"
    path.write_bytes(path.read_bytes()[:-4])
    assert_refused(rf"Expected {ROWS * 4} bytes in .*residual\.bin, but got {ROWS * 4 - 4}", model, data, tmp_path)


def test_a_column_that_is_gone_is_refused(tmp_path):
    model, data = Net(), batches()
    fit(model, data, tmp_path)
    (tmp_path / "train" / "features.bin").unlink()
    assert_refused(r"features\.bin, but got 0; delete the cache", model, data, tmp_path)


# Tables


def table_on_disk(folder, parts):
    disk = DiskTable.open(folder, {"model": "m"})
    for number, part in enumerate(parts):
        assert not disk.holds(str(number))
        if disk.meta is None:
            disk.start({"columns": {k: (v.shape[1], str(v.dtype).removeprefix("torch.")) for k, v in part.items()}})
        disk.append(part, str(number))
    return disk.finish()


def numbered_parts(sizes=(3, 4, 2)):
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [
        {
            "a": torch.arange(start, start + size)[:, None].float().repeat(1, 2),
            "label": torch.arange(start, start + size)[:, None],
        }
        for start, size in zip(starts, sizes, strict=True)
    ]


def test_a_disk_table_reads_back_what_was_written(tmp_path):
    parts = numbered_parts()
    table = table_on_disk(tmp_path, parts)
    whole = table.whole()
    assert table.rows == 9
    assert whole["label"].dtype == torch.int64
    for name in ("a", "label"):
        assert torch.equal(whole[name], torch.cat([part[name] for part in parts]))
    assert (table.width("a"), table.width("label")) == (2, 1)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_slices_and_windows_cover_every_row_once(kind, tmp_path):
    parts = numbered_parts((30, 50, 20))
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    table = Table.in_memory(joined) if kind == "memory" else table_on_disk(tmp_path, parts)
    table = table.joined({"extra": torch.arange(100.0)[:, None]})
    slices = list(table.slices(33))
    assert [len(part["a"]) for part in slices] == [33, 33, 33, 1]
    assert torch.equal(torch.cat([part["label"] for part in slices])[:, 0], torch.arange(100))
    table = replace(table, window=30)
    seen = []
    for start, window in table.windows(torch.Generator().manual_seed(0)):
        assert torch.equal(window["label"][:, 0], torch.arange(start, min(start + 30, 100)))
        assert torch.equal(window["extra"], window["label"].float())
        seen.append(start)
    assert sorted(seen) == [0, 30, 60, 90]
    orders = {tuple(s for s, _ in table.windows(torch.Generator().manual_seed(seed))) for seed in range(8)}
    assert len(orders) > 1


def test_fingerprints_tell_shapes_types_and_contents_apart():
    x = torch.arange(6.0)
    tensors = [x, x + 1e-7, x.double(), x.reshape(2, 3), x.reshape(3, 2), x[:5], x[:0], x.bfloat16(), x > 2]
    found = {digest([tensor]) for tensor in tensors}
    assert len(found) == len(tensors) - int(torch.equal(x, x + 1e-7))
    assert digest([x]) == digest([x.clone()])
    assert digest([x[::2]]) == digest([x[::2].contiguous()])
    assert digest([x.as_strided((1,), (3,))]) == digest([x[:1].clone()]), "one number may come with any stride"
    assert digest([x, x + 1]) != digest([x + 1, x])


def test_the_fingerprint_of_a_model_depends_on_names_parameters_and_buffers():
    model, twin = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    assert model_fingerprint(model) == model_fingerprint(twin)
    twin.running_var[0] += 1e-5
    assert model_fingerprint(model) != model_fingerprint(twin)
    assert model_fingerprint(nn.Sequential(model)) != model_fingerprint(model)
    assert model_fingerprint(model) == model_fingerprint(model.eval())
