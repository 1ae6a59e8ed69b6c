"""The training loop: a stack trains as its members would alone, the best epoch is kept, every row takes part."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import splitpoint as sp
from splitpoint.cache import Table
from splitpoint.errors import DataError, SettingsError
from splitpoint.heads import Heads
from splitpoint.training import HELD_BACK_LIMIT, LOOKS, Adam, Feed, Member, Training, folded, held_back, train

CPU = torch.device("cpu")


def generators(count, first=0):
    return [torch.Generator().manual_seed(first + seed) for seed in range(count)]


def numbered(rows, start=0):
    number = torch.arange(start, start + rows).float()[:, None]
    return Table.in_memory({"features": number, "label": number.long()})


def member(table, left_out=()):
    mask = torch.zeros(table.rows, dtype=torch.bool)
    mask[list(left_out)] = True
    return Member(table, mask, mask)


def plain_heads(count, names=("a",)):
    inputs = {"center": torch.zeros(count, 1, 1), "spread": torch.ones(count, 1, 1)}
    return Heads.random(inputs, {name: [1] for name in names}, generators(count))


def upwards(heads, rows):
    """A loss that pushes every output up, for ever."""
    return {name: -value.mean((1, 2)) for name, value in heads(rows["features"]).items()}


def run(heads, members, loss, score=None, group=1, seeds=0, **settings):
    training = Training(**{"epochs": 3, "decay": False} | settings)
    drawn = generators(len(members), seeds)
    return train(heads, members, loss, score, training, drawn, group=group, label="test", progress=False)


def biases(heads, name="a"):
    return heads.trunk(name).biases[-1].detach().clone()


class Scripted:
    """A score that follows a script, epoch by epoch, and remembers the state that it saw."""

    def __init__(self, *groups, name="a"):
        self.groups, self.name, self.seen = groups, name, []

    def __call__(self, heads, rows):
        epoch = len(self.seen)
        self.seen.append(biases(heads, self.name))
        return {self.name: torch.tensor([group[min(epoch, len(group) - 1)] for group in self.groups])}


# Settings


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(1, 1), (10, 10), (63, 63), (64, 64), (6_400, 64), (8_192, 128), (100_000, 1024), (262_144, 4096), (10**8, 4096)],
)
def test_the_batch_is_about_a_hundredth_of_the_rows(rows, expected):
    assert Training().batch(rows) == expected


@pytest.mark.parametrize("rows", [64, 1000, 6400, 20_000, 100_000, 10**6, 10**7])
def test_the_batch_is_a_power_of_two_near_a_hundredth(rows):
    batch = Training().batch(rows)
    assert batch & (batch - 1) == 0
    assert batch in (64, 4096) or rows / 128 <= batch <= rows / 64


def test_a_batch_is_never_larger_than_the_rows():
    assert Training(batch_size=100).batch(30) == 30
    assert Training(batch_size=100).batch(300) == 100


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(10, 1000), (64, 1000), (640, 100), (1280, 50), (3200, 50), (6400, 30), (4096 * 10_000, 1)],
)
def test_epochs_are_fifty_but_a_thousand_to_three_thousand_steps(rows, expected):
    assert Training().passes(rows) == expected


@pytest.mark.parametrize("rows", [1, 7, 65, 500, 3000, 9999, 50_000, 10**6, 10**7])
def test_the_number_of_steps_stays_in_its_range(rows):
    steps = math.ceil(rows / Training().batch(rows))
    assert 1000 <= Training().passes(rows) * steps <= max(3000, steps)


def test_named_epochs_are_taken_as_they_are():
    assert Training(epochs=7).passes(10) == Training(epochs=7).passes(10**7) == 7


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, r"Expected epochs >= 1 or None, but got 0\."),
        ({"batch_size": -3}, r"Expected batch_size >= 1 or None, but got -3\."),
        ({"patience": 0}, r"Expected patience >= 1 or None, but got 0\."),
        ({"learning_rate": 0}, r"Expected learning_rate > 0 and weight_decay >= 0, but got 0, 0\.0\."),
        ({"learning_rate": -1e-3}, "Expected learning_rate > 0"),
        ({"learning_rate": math.nan}, "Expected learning_rate to be a finite number"),
        ({"weight_decay": -0.5}, r"and weight_decay >= 0, but got 0\.001, -0\.5\."),
        ({"held_back": 1.0}, r"Expected held_back in \[0, 1\), but got 1\.0\."),
        ({"held_back": -0.1}, r"Expected held_back in \[0, 1\), but got -0\.1\."),
    ],
    ids=str,
)
def test_settings_outside_their_range_are_refused(settings, message):
    with pytest.raises(SettingsError, match=message):
        Training(**settings)
    matching = message.replace(r"0\.001", r"0\.00\d")
    with pytest.raises(SettingsError, match=matching):
        sp.SplitPointRegressor(**settings)
    with pytest.raises(SettingsError, match=matching):
        sp.SplitPointClassifier(**settings)


# Rows


def drawn(feed):
    """Labels (steps, members, batch) of one pass, and the parts of the pass."""
    pairs = list(feed.batches())
    return [batch["label"][..., 0] for _, batch in pairs], [part for part, _ in pairs]


@pytest.mark.parametrize(("rows", "size"), [(12, 4), (64, 64), (130, 13), (5, 1)])
def test_every_row_is_used_exactly_once_per_epoch(rows, size):
    feed = Feed([member(numbered(rows))], Training(batch_size=size), generators(1), CPU)
    orders = []
    for _ in range(3):
        batches, _ = drawn(feed)
        assert [tuple(batch.shape) for batch in batches] == [(1, size)] * (rows // size)
        orders.append(torch.cat(batches, 1)[0])
        assert torch.equal(orders[-1].sort().values, torch.arange(rows))
    assert rows == 5 or not torch.equal(orders[0], orders[1])


@pytest.mark.parametrize(("rows", "size"), [(10, 4), (100, 64), (7, 6), (65, 64)])
def test_a_last_batch_that_is_not_full_is_filled_with_rows_of_the_same_pass(rows, size):
    feed = Feed([member(numbered(rows))], Training(batch_size=size), generators(1), CPU)
    batches, _ = drawn(feed)
    steps = math.ceil(rows / size)
    assert [tuple(batch.shape) for batch in batches] == [(1, size)] * steps
    counts = torch.cat(batches, 1)[0].bincount(minlength=rows)
    assert counts.min() == 1
    assert counts.max() <= 2
    assert counts.sum() == steps * size


def test_rows_left_out_are_never_trained_on_and_all_are_scored():
    left_out = [0, 3, 4, 11]
    feed = Feed([member(numbered(12), left_out)], Training(batch_size=4), generators(1), CPU)
    for _ in range(3):
        assert set(torch.cat(drawn(feed)[0], 1)[0].tolist()) == set(range(12)) - set(left_out)
    assert feed.scored["label"][0, :, 0].tolist() == left_out


def test_members_have_rows_and_an_order_of_their_own():
    tables = [numbered(8), numbered(8, start=100), numbered(8, start=200)]
    feed = Feed([member(table) for table in tables], Training(batch_size=4), generators(3), CPU)
    batches = torch.cat(drawn(feed)[0], 1)
    for number in range(3):
        assert torch.equal(batches[number].sort().values, torch.arange(8) + 100 * number)
        alone = Feed([member(tables[number])], Training(batch_size=4), generators(1, number), CPU)
        assert torch.equal(torch.cat(drawn(alone)[0], 1)[0], batches[number])


def test_members_with_fewer_rows_repeat_them_within_the_pass():
    feed = Feed([member(numbered(9)), member(numbered(4, 100))], Training(batch_size=3), generators(2), CPU)
    batches = torch.cat(drawn(feed)[0], 1)
    assert batches.shape == (2, 9)
    assert torch.equal(batches[0].sort().values, torch.arange(9))
    assert sorted((batches[1] - 100).bincount().tolist()) == [2, 2, 2, 3]


@pytest.mark.parametrize(("rows", "window", "size"), [(60, 20, 5), (60, 20, 20), (50, 20, 5), (50, 20, 7), (9, 2, 4)])
def test_windows_of_a_table_on_disk_cover_all_rows(rows, window, size):
    table = numbered(rows)
    table = replace(table, window=window)
    left_out = [0, 7]
    feed = Feed([member(table, left_out)], Training(batch_size=size), generators(1), CPU)
    assert feed.on_disk
    for _ in range(2):
        batches, parts = drawn(feed)
        assert set(torch.cat([batch.flatten() for batch in batches]).tolist()) == set(range(rows)) - set(left_out)
        assert parts == sorted(parts)
        assert parts[0] == 0
        assert parts[-1] < 1
    assert feed.scored["label"][0, :, 0].tolist() == left_out


def test_a_window_whose_rows_are_all_left_out_is_passed_over():
    table = numbered(12)
    table = replace(table, window=4)
    feed = Feed([member(table, range(4, 8))], Training(batch_size=4), generators(1), CPU)
    assert set(torch.cat(drawn(feed)[0], 1)[0].tolist()) == {0, 1, 2, 3, 8, 9, 10, 11}


def test_nothing_to_train_on_is_refused():
    with pytest.raises(DataError, match="Expected at least two rows with a target to train on, but got fewer"):
        Feed([member(numbered(3), range(3))], Training(), generators(1), CPU)


@pytest.mark.parametrize(("rows", "share", "expected"), [(100, 0.1, 10), (7, 0.1, 0), (50, 0.0, 0), (9, 0.5, 4)])
def test_a_share_of_the_rows_is_held_back(rows, share, expected):
    found = held_back(numbered(rows), share, torch.Generator().manual_seed(0))
    assert int(found.left_out.sum()) == expected
    assert torch.equal(found.left_out, found.scored)


def test_no_more_than_twenty_thousand_rows_are_held_back():
    table = Table.in_memory({"features": torch.zeros(300_000, 1)})
    assert int(held_back(table, 0.5, torch.Generator()).left_out.sum()) == HELD_BACK_LIMIT == 20_000


@pytest.mark.parametrize(("rows", "folds"), [(20, 5), (23, 5), (4, 2)])
def test_folds_share_out_the_rows_and_the_last_member_has_all(rows, folds):
    members = folded(numbered(rows), folds, torch.Generator().manual_seed(0))
    assert len(members) == folds + 1
    times = torch.stack([m.left_out for m in members[:-1]]).sum(0)
    assert (times == 1).all()
    sizes = [int(m.left_out.sum()) for m in members[:-1]]
    assert max(sizes) - min(sizes) <= 1
    assert not members[-1].left_out.any()
    assert all(torch.equal(m.left_out, m.scored) for m in members[:-1])
    other = folded(numbered(rows), folds, torch.Generator().manual_seed(1))
    assert not all(torch.equal(a.left_out, b.left_out) for a, b in zip(members, other, strict=True))


# The loop


def test_the_loop_minimises_the_loss():
    """A line through points on a line is found."""
    x = torch.linspace(-1, 1, 64)[:, None]
    table = Table.in_memory({"features": x, "y": 3 * x - 1})
    heads = plain_heads(1)

    def squared(heads, rows):
        return {"a": (heads(rows["features"])["a"] - rows["y"]).square().mean((1, 2))}

    run(heads, [member(table)], squared, epochs=400, batch_size=16, learning_rate=0.05, decay=True)
    assert heads.trunk("a").weights[0].item() == pytest.approx(3, abs=1e-2)
    assert heads.trunk("a").biases[0].item() == pytest.approx(-1, abs=1e-2)


def test_the_best_epoch_is_kept_though_later_ones_are_worse():
    heads, score = plain_heads(1), Scripted([5.0, 4.0, 1.0, 2.0, 3.0, 9.0])
    run(heads, [member(numbered(8), [0])], upwards, score, epochs=6)
    assert len(score.seen) == 6
    assert torch.equal(biases(heads), score.seen[2])
    assert not torch.equal(score.seen[2], score.seen[-1])


def test_the_first_of_equal_epochs_is_kept():
    heads, score = plain_heads(1), Scripted([2.0, 1.0, 1.0, 1.0])
    run(heads, [member(numbered(8), [0])], upwards, score, epochs=4)
    assert torch.equal(biases(heads), score.seen[1])


def test_a_real_score_finds_the_epoch_at_which_the_output_passes_its_target():
    heads, seen = plain_heads(1), []
    heads.start_at("a", torch.zeros(1, 1))

    def score(heads, rows):
        seen.append(biases(heads).item())
        return {"a": (biases(heads)[:, 0, 0] - 0.35).abs()}

    def loss(heads, rows):
        return {"a": -heads.trunk("a").biases[-1].sum((1, 2))}

    run(heads, [member(numbered(4))], loss, score, epochs=10, learning_rate=0.1)
    assert seen == pytest.approx([0.1 * k for k in range(1, 11)], rel=1e-3)  # Adam under a constant gradient
    assert biases(heads).item() == min(seen, key=lambda value: abs(value - 0.35))


def test_groups_share_their_best_epoch():
    heads, score = plain_heads(4), Scripted([3.0, 1.0, 2.0, 2.0], [3.0, 2.0, 2.0, 1.0])
    run(heads, [member(numbered(8), [0]) for _ in range(4)], upwards, score, group=2, epochs=4)
    assert torch.equal(biases(heads)[:2], score.seen[1][:2])
    assert torch.equal(biases(heads)[2:], score.seen[3][2:])


def test_trunks_that_are_not_scored_keep_their_last_state():
    heads, score = plain_heads(1, ("a", "b")), Scripted([1.0, 2.0, 3.0])
    twin = plain_heads(1, ("a", "b"))
    run(heads, [member(numbered(8), [0])], upwards, score, epochs=3)
    run(twin, [member(numbered(8), [0])], upwards, None, epochs=3)
    assert torch.equal(biases(heads, "a"), score.seen[0])
    assert torch.equal(biases(heads, "b"), biases(twin, "b"))
    assert not torch.equal(biases(heads, "a"), biases(twin, "a"))


def counted(loss):
    calls = []

    def counting(heads, rows):
        calls.append(1)
        return loss(heads, rows)

    return counting, calls


def test_patience_stops_early():
    heads, score = plain_heads(1), Scripted([3.0, 2.0, 1.0, 1.5, 1.5, 0.5])
    loss, calls = counted(upwards)
    run(heads, [member(numbered(9), [0])], loss, score, epochs=50, batch_size=8, patience=2)
    assert len(calls) == len(score.seen) == 5  # best at 3, two more without improvement
    assert torch.equal(biases(heads), score.seen[2])


def test_training_goes_on_while_any_group_has_patience():
    heads, score = plain_heads(2), Scripted([1.0, 2.0], [9.0, 8.0, 7.0, 6.0, 6.0])
    loss, calls = counted(upwards)
    run(heads, [member(numbered(9), [0]) for _ in range(2)], loss, score, epochs=50, batch_size=8, patience=2)
    assert len(calls) == 6  # the second is best at 4


def test_a_group_out_of_patience_ends_as_it_would_alone():
    """Its late improvement does not count, though the other group keeps the loop going."""
    script = [1.0, 2.0, 2.0, 2.0, 0.1]
    heads, score = plain_heads(2), Scripted(script, [9.0, 8.0, 7.0, 6.0, 5.0, 4.0])
    run(heads, [member(numbered(9), [0]) for _ in range(2)], upwards, score, epochs=8, batch_size=8, patience=2)
    assert torch.equal(biases(heads)[0], score.seen[0][0])
    alone, lonely = plain_heads(1), Scripted(script)
    run(alone, [member(numbered(9), [0])], upwards, lonely, epochs=8, batch_size=8, patience=2)
    assert torch.equal(biases(alone)[0], biases(heads)[0])


@pytest.mark.parametrize("epochs", [3, 25, 60, 101])
def test_without_patience_all_passes_are_made_and_the_score_is_looked_at_now_and_then(epochs):
    heads, score = plain_heads(1), Scripted([1.0])
    loss, calls = counted(upwards)
    run(heads, [member(numbered(9), [0])], loss, score, epochs=epochs, batch_size=8)
    assert len(calls) == epochs
    assert min(epochs, LOOKS) <= len(score.seen) <= 2 * LOOKS
    twin, last = plain_heads(1), Scripted([float(-n) for n in range(epochs)])
    run(twin, [member(numbered(9), [0])], upwards, last, epochs=epochs, batch_size=8)
    none = plain_heads(1)
    run(none, [member(numbered(9), [0])], upwards, None, epochs=epochs, batch_size=8)
    assert torch.equal(biases(twin), biases(none))  # the last epoch is looked at


@pytest.mark.parametrize("window", [None, 4], ids=["memory", "windows"])
def test_the_learning_rate_falls_along_a_cosine(window, monkeypatch):
    rates = []

    class Spy(Adam):
        def step(self, rate):
            rates.append(rate)
            super().step(rate)

    monkeypatch.setattr("splitpoint.training.Adam", Spy)
    table = numbered(8)
    table = replace(table, window=window or 8)
    run(plain_heads(1), [member(table)], upwards, epochs=3, batch_size=2, learning_rate=0.5, decay=True)
    assert rates == pytest.approx([0.25 * (1 + math.cos(math.pi * step / 12)) for step in range(12)])
    rates.clear()
    run(plain_heads(1), [member(table)], upwards, epochs=3, batch_size=2, learning_rate=0.5, decay=False)
    assert rates == [0.5] * 12


def test_members_do_not_influence_each_other():
    tables = [Table.in_memory({"features": torch.randn(20, 1, generator=g)}) for g in generators(3)]

    def loss(heads, rows):
        return {"a": (heads(rows["features"])["a"] - rows["features"].square()).square().mean((1, 2))}

    stack = plain_heads(3)
    run(stack, [member(table) for table in tables], loss, epochs=5, batch_size=4, weight_decay=0.1)
    for number in range(3):
        alone = plain_heads(3).member(number)
        run(alone, [member(tables[number])], loss, epochs=5, batch_size=4, weight_decay=0.1, seeds=number)
        torch.testing.assert_close(biases(alone)[0], biases(stack)[number], rtol=0, atol=1e-6)


# Whole methods


def networks(count, outputs=1):
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return [nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, outputs)) for _ in range(count)]


def task(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator)
    return x, x.sum(1, keepdim=True) + torch.randn(rows, 1, generator=generator)


def labels(rows, seed):
    x, y = task(rows, seed)
    return x, (y[:, 0] > 0).long()


METHODS = {
    "regression": (sp.SplitPointRegressor(epochs=3, folds=0), 1, task),
    "regression, several levels": (sp.SplitPointRegressor((0.5, 0.8), epochs=3, folds=0, held_back=0.3), 1, task),
    "regression, cross-fitted": (sp.SplitPointRegressor(epochs=3, folds=3), 1, task),
    "regression, patience": (sp.SplitPointRegressor(epochs=8, folds=0, patience=1, held_back=0.3), 1, task),
    "regression, paper": (sp.SplitPointRegressor.paper(epochs=3), 1, task),
    "classification": (sp.SplitPointClassifier(epochs=3), 2, labels),
    "classification, free": (sp.SplitPointClassifier(epochs=3, mars="free"), 2, labels),
    "classification, paper": (sp.SplitPointClassifier.paper(epochs=3), 2, labels),
}
every_method = pytest.mark.parametrize(("method", "outputs", "data"), METHODS.values(), ids=METHODS.keys())


def assert_close(one, other, tolerance):
    a, b = one.own_tensors(), other.own_tensors()
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


@every_method
@pytest.mark.parametrize("calibrated", [False, True], ids=["plain", "calibrated"])
def test_a_member_of_a_stack_ends_as_it_would_alone(method, outputs, data, calibrated):
    models, parts = networks(3, outputs), [data(60, seed) for seed in range(3)]
    held_out = [data(90, 10 + seed) for seed in range(3)] if calibrated else None
    stack = method.fit_many(models, parts, calibration=held_out, seeds=[7, 8, 9], progress=False)
    for number in range(3):
        calibration = None if held_out is None else held_out[number]
        alone = method.fit(models[number], parts[number], calibration=calibration, seed=7 + number, progress=False)
        assert_close(alone, stack[number], 1e-6)


@every_method
def test_fitting_is_deterministic_and_leaves_the_global_random_state_alone(method, outputs, data):
    (model,) = networks(1, outputs)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one = method.fit(model, data(60, 0), calibration=data(90, 1), progress=False)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    other = method.fit(model, data(60, 0), calibration=data(90, 1), progress=False)
    assert_close(one, other, 0)


def test_a_data_set_that_is_read_row_by_row_leaves_the_global_random_state_alone():
    (model,) = networks(1)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    sp.SplitPointRegressor(epochs=1, folds=0).fit(model, TensorDataset(*task(20, 0)), progress=False)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "name", ["regression", "regression, cross-fitted", "regression, paper", "classification, free"]
)
def test_other_seeds_give_other_heads(name):
    method, outputs, data = METHODS[name]
    (model,) = networks(1, outputs)
    one, other = (method.fit(model, data(60, 0), seed=seed, progress=False).own_tensors() for seed in (0, 1))
    weights = [key for key in one if ".weights.0" in key]
    assert weights
    assert not any(torch.equal(one[key], other[key]) for key in weights)


def test_seeds_default_to_their_numbers():
    models, parts = networks(2), [task(40, 0), task(40, 1)]
    method = sp.SplitPointRegressor(epochs=2, folds=0)
    named = method.fit_many(models, parts, seeds=[0, 1], progress=False)
    for one, other in zip(method.fit_many(models, parts, progress=False), named, strict=True):
        assert_close(one, other, 0)


def test_models_and_data_must_match_in_number_and_shape():
    method = sp.SplitPointRegressor(epochs=1, folds=0)
    with pytest.raises(SettingsError, match=r"Expected as many models, data sets, .* but got 2, 1, 1 and 1"):
        method.fit_many(networks(2), [task(20, 0)], progress=False)
    wide = nn.Sequential(nn.Linear(3, 9), nn.Linear(9, 1))
    with pytest.raises(SettingsError, match=r"equal feature widths and outputs to fit as one stack, but got \[6, 9\]"):
        method.fit_many([*networks(1), wide], [task(20, 0)] * 2, progress=False)


@pytest.mark.parametrize("given", ["calibration", "seeds"])
def test_calibration_data_and_seeds_must_match_the_models_in_number(given):
    method = sp.SplitPointRegressor(0.5, epochs=1, folds=0)
    more = {"calibration": [task(60, 2)], "seeds": [0]}[given]
    with pytest.raises(SettingsError, match="Expected as many"):
        method.fit_many(networks(2), [task(20, 0), task(20, 1)], progress=False, **{given: more})
