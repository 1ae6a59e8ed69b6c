"""Every form of data and of model output that the contract names, and the sentence that a wrong one gets."""

import itertools
from collections import OrderedDict, UserDict, namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from splitpoint.batches import Batch, labelled, one_pass, output_tensor, placement, unlabelled
from splitpoint.errors import DataError

ROWS, WIDTH = 7, 3
INPUTS = torch.arange(float(ROWS * WIDTH)).reshape(ROWS, WIDTH)
MORE = INPUTS + 1000
TARGETS = torch.arange(float(ROWS)) * 10
Pair = namedtuple("Pair", ["features", "answer"])


class Rows(Dataset):
    """A map-style data set that gives whatever `item` makes of a row number."""

    def __init__(self, item):
        self.item = item

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        return self.item(row)


class Stream(IterableDataset):
    """An iterable data set without a length."""

    def __iter__(self):
        return iter([(INPUTS[row], TARGETS[row]) for row in range(ROWS)])


def joined(batches):
    """All positional inputs, keyword inputs and targets of a stream, put together again."""
    batches = list(batches)
    args = [torch.cat([torch.as_tensor(a) for a in column]) for column in zip(*(b.args for b in batches), strict=True)]
    kwargs = {key: torch.cat([torch.as_tensor(b.kwargs[key]) for b in batches]) for key in batches[0].kwargs}
    targets = [b.target for b in batches]
    return args, kwargs, None if targets[0] is None else torch.cat(targets)


def pieces(*columns, size=3, make=tuple):
    return [make(c[start : start + size] for c in columns) for start in range(0, ROWS, size)]


LABELLED = {
    "DataLoader": lambda: DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=2),
    "generator": lambda: (pair for pair in pieces(INPUTS, TARGETS)),
    "iterator of lists": lambda: iter(pieces(INPUTS, TARGETS, make=list)),
    "list of batches": lambda: pieces(INPUTS, TARGETS),
    "named tuples": lambda: [Pair(*piece) for piece in pieces(INPUTS, TARGETS)],
    "TensorDataset": lambda: TensorDataset(INPUTS, TARGETS),
    "map-style Dataset": lambda: Rows(lambda row: (INPUTS[row], TARGETS[row])),
    "IterableDataset": Stream,
    "pair of tensors": lambda: (INPUTS, TARGETS),
    "list of two tensors": lambda: [INPUTS, TARGETS],
    "pair of arrays": lambda: (INPUTS.numpy(), TARGETS.numpy()),
    "tensor and array": lambda: (INPUTS, TARGETS.numpy()),
    "targets as lists": lambda: [(x, y.tolist()) for x, y in pieces(INPUTS, TARGETS)],
}


@pytest.mark.parametrize("make", LABELLED.values(), ids=LABELLED.keys())
def test_every_form_of_labelled_data_gives_the_same_rows_in_order(make):
    args, kwargs, target = joined(labelled(make(), batch_size=3))
    assert len(args) == 1
    assert not kwargs
    assert torch.equal(args[0], INPUTS)
    assert torch.equal(target.float(), TARGETS)


@pytest.mark.parametrize("make", LABELLED.values(), ids=LABELLED.keys())
def test_labelled_data_serve_prediction_with_their_targets_dropped(make):
    args, kwargs, target = joined(unlabelled(make(), batch_size=3, inputs=1))
    assert torch.equal(args[0], INPUTS)
    assert len(args) == 1
    assert not kwargs
    assert target is None


UNLABELLED = {
    "tensor": lambda: INPUTS,
    "array": lambda: INPUTS.numpy(),
    "TensorDataset of inputs": lambda: TensorDataset(INPUTS),
    "DataLoader of inputs": lambda: DataLoader(TensorDataset(INPUTS), batch_size=2),
    "Dataset of inputs": lambda: Rows(lambda row: INPUTS[row]),
    "generator of tensors": lambda: (x for (x,) in pieces(INPUTS)),
    "tuple of one": lambda: (INPUTS,),
    "generator of arrays": lambda: (x.numpy() for (x,) in pieces(INPUTS)),
}


@pytest.mark.parametrize("make", UNLABELLED.values(), ids=UNLABELLED.keys())
def test_every_form_of_unlabelled_data_gives_the_same_rows_in_order(make):
    args, _, target = joined(unlabelled(make(), batch_size=3, inputs=1))
    assert len(args) == 1
    assert torch.equal(args[0], INPUTS)
    assert target is None


@pytest.mark.parametrize("make", UNLABELLED.values(), ids=UNLABELLED.keys())
def test_data_without_targets_are_refused_where_targets_are_needed(make):
    with pytest.raises(DataError, match=r"Expected batches with a target, \(x, y\) or a dict with 'labels', but got"):
        list(labelled(make(), batch_size=3))


MULTIPLE = {
    "tensors": lambda: (INPUTS, MORE, TARGETS),
    "arrays": lambda: (INPUTS.numpy(), MORE.numpy(), TARGETS.numpy()),
    "DataLoader": lambda: DataLoader(TensorDataset(INPUTS, MORE, TARGETS), batch_size=2),
    "generator": lambda: (piece for piece in pieces(INPUTS, MORE, TARGETS)),
}


@pytest.mark.parametrize("make", MULTIPLE.values(), ids=MULTIPLE.keys())
def test_the_last_of_several_tensors_is_the_target(make):
    args, _, target = joined(labelled(make(), batch_size=4))
    assert torch.equal(torch.stack(args), torch.stack([INPUTS, MORE]))
    assert torch.equal(target, TARGETS)


@pytest.mark.parametrize("columns", [(INPUTS, MORE), (INPUTS, MORE, TARGETS)], ids=["without target", "with target"])
def test_a_model_of_two_inputs_predicts_with_and_without_a_target_in_the_batch(columns):
    args, _, target = joined(unlabelled(columns, batch_size=4, inputs=2))
    assert torch.equal(torch.stack(args), torch.stack([INPUTS, MORE]))
    assert target is None


NAMED = {"x": INPUTS, "mask": MORE, "labels": TARGETS}
MAPPINGS = {
    "dict of tensors": lambda: NAMED,
    "UserDict of tensors": lambda: UserDict(NAMED),
    "dict of arrays": lambda: {key: value.numpy() for key, value in NAMED.items()},
    "generator of dicts": lambda: (dict(zip(NAMED, p, strict=True)) for p in pieces(*NAMED.values())),
    "list of dicts": lambda: [dict(zip(NAMED, p, strict=True)) for p in pieces(*NAMED.values())],
    "list of UserDicts": lambda: [UserDict(zip(NAMED, p, strict=True)) for p in pieces(*NAMED.values())],
    "Dataset of dicts": lambda: Rows(lambda row: {key: value[row] for key, value in NAMED.items()}),
    "DataLoader of dicts": lambda: DataLoader(Rows(lambda row: {k: v[row] for k, v in NAMED.items()}), batch_size=2),
}


@pytest.mark.parametrize("make", MAPPINGS.values(), ids=MAPPINGS.keys())
def test_mappings_become_keyword_arguments_without_their_labels(make):
    args, kwargs, target = joined(labelled(make(), batch_size=3))
    assert args == []
    assert kwargs.keys() == {"x", "mask"}
    assert torch.equal(kwargs["x"], INPUTS)
    assert torch.equal(kwargs["mask"], MORE)
    assert torch.equal(target, TARGETS)


@pytest.mark.parametrize("make", MAPPINGS.values(), ids=MAPPINGS.keys())
def test_mappings_serve_prediction_without_their_labels(make):
    _, kwargs, target = joined(unlabelled(make(), batch_size=3, inputs=1))
    assert kwargs.keys() == {"x", "mask"}
    assert target is None


def test_the_users_own_mapping_keeps_its_labels():
    item = UserDict(NAMED)
    list(labelled([item], batch_size=3))
    assert set(item) == set(NAMED)


def test_a_mapping_without_labels_serves_prediction_but_not_fitting():
    _, kwargs, _ = joined(unlabelled([{"x": INPUTS}], batch_size=3, inputs=1))
    assert torch.equal(kwargs["x"], INPUTS)
    with pytest.raises(DataError, match=r"'labels', but got a mapping with keys \['x'\]; give the data together with"):
        list(labelled([{"x": INPUTS}], batch_size=3))


def test_a_mapping_of_one_batch_may_hold_more_than_tensors():
    (batch,) = labelled([{"x": INPUTS, "labels": TARGETS, "return_dict": True}], batch_size=3)
    assert batch.kwargs["return_dict"] is True


def test_whole_arrays_are_cut_into_batches_of_the_asked_size():
    sizes = [len(batch.target) for batch in labelled((INPUTS, TARGETS), batch_size=3)]
    assert sizes == [3, 3, 1]
    sizes = [len(batch.target) for batch in labelled(TensorDataset(INPUTS, TARGETS), batch_size=4)]
    assert sizes == [4, 3]


def test_a_stream_is_read_lazily_and_never_asked_for_its_length():
    endless = ((INPUTS, TARGETS) for _ in itertools.count())
    taken = list(itertools.islice(labelled(endless, batch_size=3), 2))
    assert len(taken) == 2


def test_an_empty_stream_gives_no_batches():
    assert list(labelled([], batch_size=3)) == []
    assert list(unlabelled(iter(()), batch_size=3, inputs=1)) == []


# Wrong data


@pytest.mark.parametrize(("data", "kind"), [(3, "int"), (None, "NoneType"), (nn.Linear(1, 1), "Linear")])
def test_data_that_cannot_be_read_are_named(data, kind):
    expected = rf"Expected a DataLoader, an iterable of batches, a Dataset or a pair \(X, y\), but got {kind}\."
    with pytest.raises(DataError, match=expected):
        list(labelled(data, batch_size=3))
    with pytest.raises(DataError, match=expected):
        list(unlabelled(data, batch_size=3, inputs=1))


@pytest.mark.parametrize(("item", "kind"), [(3, "int"), (None, "NoneType"), ((), r"a tuple of 0: \[\]")])
def test_batches_that_cannot_be_read_are_named(item, kind):
    expected = rf"Expected batches \(x, y\), \(x1, x2, \.\.\., y\), dicts or tensors, but got {kind}\."
    with pytest.raises(DataError, match=expected):
        list(labelled([item], batch_size=3))


def test_arrays_of_different_length_are_refused():
    with pytest.raises(DataError, match=r"Expected arrays with the same number of rows, but got \[7, 6\]\."):
        list(labelled((INPUTS, TARGETS[:6]), batch_size=3))
    with pytest.raises(DataError, match=r"\[7, 5\]"):
        list(labelled({"x": INPUTS, "labels": TARGETS[:5]}, batch_size=3))


@pytest.mark.parametrize(
    "data",
    [(torch.tensor(1.0), torch.tensor(2.0)), {"x": INPUTS, "labels": TARGETS, "return_dict": True}],
    ids=["scalars", "a flag among the arrays"],
)
def test_whole_data_with_an_entry_that_has_no_rows_are_refused(data):
    with pytest.raises(DataError, match="rows"):
        list(labelled(data, batch_size=3))


@pytest.mark.parametrize(
    ("target", "kind"),
    [(["a", "b"], "list of type"), ([[1], [1, 2]], "list that makes none"), (object(), "object of type")],
    ids=["text", "ragged", "object"],
)
def test_targets_that_form_no_tensor_are_refused(target, kind):
    with pytest.raises(
        DataError, match=rf"Expected targets as a tensor, an array or a list of numbers, but got a {kind}"
    ):
        list(labelled([(INPUTS[:2], target)], batch_size=3))


def test_text_is_not_data():
    with pytest.raises(DataError):
        list(labelled("abc", batch_size=3))


# Placement


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_numpy_floats_arrive_in_the_precision_of_the_model(dtype):
    model = nn.Linear(WIDTH, 1).to(dtype)
    for array in (INPUTS.double().numpy(), INPUTS.numpy(), INPUTS.numpy().astype(np.float16)):
        (batch,) = unlabelled(array, batch_size=10, inputs=1)
        moved = batch.to(model).args[0]
        assert moved.dtype == dtype
        torch.testing.assert_close(moved.float(), INPUTS, rtol=1e-2, atol=0)


def test_numpy_keyword_arguments_arrive_in_the_precision_of_the_model():
    data = {"x": INPUTS.double().numpy(), "labels": TARGETS.numpy()}
    (batch,) = labelled(data, batch_size=10)
    assert batch.to(nn.Linear(WIDTH, 1)).kwargs["x"].dtype == torch.float32


def test_numpy_integers_and_the_users_own_tensors_keep_their_type():
    batch = Batch((np.arange(3), INPUTS.double(), np.array([True, False])), {}, None).to(nn.Linear(1, 1))
    assert [item.dtype for item in batch.args] == [torch.int64, torch.float64, torch.bool]


def test_inputs_and_target_go_to_the_device_of_the_model():
    batch = Batch((INPUTS, INPUTS.numpy()), {"x": MORE, "flag": "text"}, TARGETS).to(nn.Linear(1, 1, device="meta"))
    assert {item.device.type for item in (*batch.args, batch.kwargs["x"], batch.target)} == {"meta"}
    assert batch.kwargs["flag"] == "text"


def test_arguments_that_are_no_tensors_are_handed_on_as_they_are():
    batch = Batch((INPUTS, 3, "text", None), {}, None).to(nn.Linear(1, 1))
    assert batch.args[1:] == (3, "text", None)
    assert batch.target is None


def test_reversed_numpy_views_are_read_like_any_array():
    data = (INPUTS.flip(0).numpy()[::-1], TARGETS.flip(0).numpy()[::-1])
    batches = [batch.to(nn.Linear(WIDTH, 1)) for batch in labelled(data, batch_size=3)]
    assert torch.equal(torch.cat([batch.args[0] for batch in batches]), INPUTS)
    assert torch.equal(torch.cat([batch.target for batch in batches]), TARGETS)


def test_read_only_numpy_arrays_are_read_without_a_warning():
    data = (INPUTS.numpy().copy(), TARGETS.numpy().copy())
    for array in data:
        array.flags.writeable = False
    torch.set_warn_always(True)
    try:
        batches = [batch.to(nn.Linear(WIDTH, 1)) for batch in labelled(data, batch_size=3)]
    finally:
        torch.set_warn_always(False)
    assert torch.equal(torch.cat([batch.args[0] for batch in batches]), INPUTS)


class WithBuffers(nn.Module):
    def __init__(self, *buffers):
        super().__init__()
        for number, buffer in enumerate(buffers):
            self.register_buffer(f"b{number}", buffer)


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        (nn.Linear(1, 1).double(), torch.float64),
        (nn.Linear(1, 1).half(), torch.float16),
        (WithBuffers(torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.float64)), torch.float64),
        (nn.Flatten(), torch.float32),
        (WithBuffers(torch.zeros(1, dtype=torch.long)), torch.float32),
    ],
    ids=["double", "half", "float buffer behind an integer one", "nothing", "integers only"],
)
def test_placement_is_that_of_the_first_floating_point_tensor(model, dtype):
    assert placement(model) == (torch.device("cpu"), dtype)


def test_placement_follows_the_device():
    assert placement(nn.Linear(1, 1, device="meta"))[0].type == "meta"


def test_tensors_of_a_batch_come_in_an_order_that_does_not_depend_on_the_keys():
    one = Batch((INPUTS, 3), {"b": MORE, "a": TARGETS.numpy()}, TARGETS + 1)
    other = Batch((INPUTS, 3), {"a": TARGETS.numpy(), "b": MORE}, TARGETS + 1)
    expected = [INPUTS, TARGETS, MORE, TARGETS + 1]
    for batch in (one, other):
        got = list(batch.tensors())
        assert len(got) == 4
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_tensors_of_a_batch_include_those_inside_a_mapping():
    batch = Batch(({"b": MORE, "a": INPUTS, "text": "x"},), {}, None)
    assert [t.sum().item() for t in batch.tensors()] == [INPUTS.sum().item(), MORE.sum().item()]


# Model outputs


class Reply(OrderedDict):
    """Like a Hugging Face model output: a mapping whose entries are attributes too."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


WANTED, OTHER = torch.arange(3.0), torch.arange(4.0)
OUTPUTS = {
    "tensor": WANTED,
    "object with logits": SimpleNamespace(logits=WANTED, loss=OTHER),
    "Hugging Face reply": Reply(loss=OTHER, logits=WANTED, hidden_states=(OTHER,)),
    "dict with logits": {"loss": OTHER, "logits": WANTED},
    "torchvision dict": OrderedDict(out=WANTED, aux=OTHER),
    "dict of one": {"depth": WANTED},
    "UserDict of one": UserDict(depth=WANTED),
    "tuple of one": (WANTED,),
    "list of one": [WANTED],
}


@pytest.mark.parametrize("raw", OUTPUTS.values(), ids=OUTPUTS.keys())
def test_the_tensor_is_found_in_every_usual_form_of_output(raw):
    assert output_tensor(raw) is WANTED


KEYED = {
    "entry of a dict": ({"logits": OTHER, "depth": WANTED}, "depth"),
    "position in a tuple": ((OTHER, WANTED), 1),
    "position from the end": ([WANTED, OTHER], -2),
    "attribute": (SimpleNamespace(logits=OTHER, depth=WANTED), "depth"),
    "entry of a reply": (Reply(logits=OTHER, depth=WANTED), "depth"),
    "field of a named tuple": (Pair(OTHER, WANTED), "answer"),
}


@pytest.mark.parametrize(("raw", "key"), KEYED.values(), ids=KEYED.keys())
def test_output_key_names_the_entry(raw, key):
    assert output_tensor(raw, key) is WANTED


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        ((WANTED, OTHER), r"a tuple of 2: \['Tensor', 'Tensor'\]"),
        ({"mean": WANTED, "scale": OTHER}, r"a mapping with keys \['mean', 'scale'\]"),
        ({"logits": WANTED, "out": OTHER}, r"a mapping with keys \['logits', 'out'\]"),
        ({"logits": "text"}, r"a mapping with keys \['logits'\]"),
        (("text",), r"a tuple of 1: \['str'\]"),
        ((), r"a tuple of 0: \[\]"),
        ({}, r"a mapping with keys \[\]"),
        (None, "NoneType"),
        (3.0, "float"),
        (SimpleNamespace(logits=None), "SimpleNamespace"),
    ],
)
def test_an_output_that_is_not_clear_is_refused_never_guessed(raw, kind):
    expected = rf"or a dict with one tensor, but got {kind}; name the entry with output_key=\."
    with pytest.raises(DataError, match=expected):
        output_tensor(raw)


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ({"a": WANTED}, "b"),
        ((WANTED,), 3),
        (WANTED, "depth"),
        (SimpleNamespace(a=WANTED), "b"),
        ({"a": "text"}, "a"),
    ],
)
def test_an_output_key_that_leads_to_no_tensor_is_named(raw, key):
    with pytest.raises(DataError, match=rf"Expected a tensor at output_key={key!r} of the model's output, but got"):
        output_tensor(raw, key)


@pytest.mark.parametrize("count", [0, 3, 5, 7, 10, 12])
def test_a_pass_takes_every_place_before_any_comes_again(count):
    places = torch.tensor([10, 20, 30, 40, 50])
    found = one_pass(places, torch.Generator().manual_seed(0), count).tolist()
    assert len(found) == count
    for start in range(0, count, 5):
        some = found[start : start + 5]
        assert len(set(some)) == len(some)
        assert set(some) <= set(places.tolist())
    assert found[5:10] == found[: len(found[5:10])]


def test_passes_follow_their_generators():
    places = torch.arange(50)
    first, again, other = (one_pass(places, torch.Generator().manual_seed(seed), 50) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
