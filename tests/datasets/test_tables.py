"""The regression tables, their raw files and their splits.

Raw files are small and made here, in the formats of their sources. Tests that read real files are skipped where
SPLITPOINT_DATA does not name them.
"""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
import xlwt
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

import made_up
from image_files import write
from made_up import checksums_of, workbook
from splitpoint.datasets import SETS, TABLES, load, split, standardise
from splitpoint.datasets.entry import VARIABLE, locate
from splitpoint.datasets.tables import _rounded, candidates
from splitpoint.errors import DataError, SettingsError

SIZES = {
    "boston": (506, 13),
    "concrete": (1030, 8),
    "energy": (768, 8),
    "kin8nm": (8192, 8),
    "naval": (11934, 16),
    "power": (9568, 4),
    "protein": (45730, 9),
    "wine": (1599, 11),
    "yacht": (308, 6),
}
"""As the paper's table of data sets prints them."""


def real(name, target=None):
    if locate(TABLES[name].path) is None:
        pytest.skip(f"SPLITPOINT_DATA names no folder with {TABLES[name].path}")
    return load(name, target)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A set of five rows and two targets, with a file that is right; returns its arrays and the way to write others."""
    arrays = {"X": np.arange(10.0).reshape(5, 2), "y": np.arange(5.0), "y_all": np.arange(10.0, 20.0).reshape(5, 2)}
    changed = {"targets": ("first", "second"), "checksums": checksums_of(arrays)}
    entry = replace(TABLES["energy"], name="small", rows=5, features=2, **changed)
    monkeypatch.setitem(SETS, "small", entry)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    (tmp_path / "uci").mkdir()

    def write(**changed):
        np.savez(tmp_path / "uci" / "small.npz", **(arrays | changed))
        return tmp_path / "uci" / "small.npz"

    write()
    return arrays, write


# Real files


def test_the_table_has_the_sizes_of_the_paper():
    assert {name: (table.rows, table.features) for name, table in TABLES.items()} == SIZES


@pytest.mark.parametrize("name", SIZES)
def test_real_sets_are_whole(name):
    data = real(name)
    assert data.X.shape == SIZES[name]
    assert data.y.shape == (SIZES[name][0], 1)
    assert data.X.dtype == data.y.dtype == torch.float64
    assert data.X.isfinite().all()
    assert data.y.isfinite().all()
    assert (data.name, data.target, data.reordered) == (name, TABLES[name].targets[0], False)


def test_known_rows():
    """First rows as the descriptions of the sets print them."""
    boston = real("boston")
    assert boston.X[0].tolist() == [0.00632, 18, 2.31, 0, 0.538, 6.575, 65.2, 4.09, 1, 296, 15.3, 396.9, 4.98]
    assert boston.y[0].item() == 24.0
    yacht = real("yacht")
    assert yacht.X[0].tolist() == [-2.3, 0.568, 4.78, 3.99, 3.17, 0.125]
    assert yacht.y[0].item() == 0.11


@pytest.mark.parametrize(
    ("name", "targets", "rows"),
    [("energy", ("heating", "cooling"), (15.55, 21.33)), ("naval", ("compressor", "turbine"), (0.95, 0.975))],
)
def test_a_second_target_is_there_for_the_asking(name, targets, rows):
    first, second = (real(name, target) for target in targets)
    assert torch.equal(first.X, second.X)
    assert (first.y[0].item(), second.y[0].item()) == rows
    assert second.target == targets[1]


# What goes wrong


def test_both_targets_of_a_small_set(small):
    arrays, _ = small
    assert load("small").y[:, 0].tolist() == arrays["y"].tolist()
    assert load("small", "first").y[:, 0].tolist() == arrays["y"].tolist()
    assert load("small", "second").y[:, 0].tolist() == arrays["y_all"][:, 1].tolist()


def test_names_that_do_not_exist(small):
    with pytest.raises(SettingsError, match=r"Expected a UCI set among boston, .*yacht, small, but got 'iris'"):
        load("iris")
    with pytest.raises(SettingsError, match="Expected a target of small among first, second, but got 'third'"):
        load("small", "third")


def test_a_missing_set_says_what_to_run(small, monkeypatch):
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(DataError, match=r"find uci/small.npz, .* or run: splitpoint data download small --to DIR\.$"):
        load("small")


def test_rows_in_another_order_are_accepted_and_told(small):
    arrays, write = small
    write(**{key: value[::-1] for key, value in arrays.items()})
    data = load("small")
    assert data.reordered
    assert data.y[:, 0].tolist() == arrays["y"][::-1].tolist()


def test_one_changed_number_is_noticed(small):
    arrays, write = small
    for key, value in arrays.items():
        changed = value.copy()
        changed.flat[3] += 1e-12
        path = write(**{key: changed})
        with pytest.raises(
            DataError, match=f"Expected the values of small, but {path} has other values.*download small"
        ):
            load("small")


def test_another_size_is_named(small):
    _, write = small
    write(X=np.zeros((5, 3)))
    with pytest.raises(
        DataError, match=r"5 rows and 2 features, but those of .* have shape \(5, 3\); get it again with"
    ):
        load("small")


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "array", "pickle"])
def test_a_file_that_cannot_be_read(small, damage):
    arrays, write = small
    path = write()
    if damage == "array":
        np.savez(path, X=arrays["X"])
    elif damage == "pickle":
        np.savez(path, X=np.array([print], dtype=object), y=arrays["y"], y_all=arrays["y_all"])
    else:
        path.write_bytes({"cut": path.read_bytes()[:-100], "empty": b"", "text": b"no archive"}[damage])
    with pytest.raises(DataError, match=f"Expected {path} to hold the arrays of small, but they cannot be read"):
        load("small")


# Raw files


BOSTON = (
    "\n".join(f"line {number} of the description" for number in range(22))
    + """
 0.00632  18.00   2.310  0  0.5380  6.5750  65.20  4.0900   1  296.0  15.30
  396.90   4.98  24.00
 0.02731   0.00   7.070  0  0.4690  6.4210  78.90  4.9671   2  242.0  17.80
  396.90   9.14  21.60
"""
)
KIN8NM = """% A comment
@relation 'kin8nm'
@attribute 'theta1' real
@attribute 'y' real
@data
-0.015119,0.36074,0.4694,1.3097,0.98802,-0.025493,0.66407,0.062763,0.53652
0.36048,-0.30139,0.62918,-1.4401,-0.74164,-1.1967,-1.0384,-0.71746,0.30801
"""
NAVAL = "".join(
    "   " + "   ".join(f"{value:.7e}" for value in [*range(1, 17), decay, 0.975]) + "\r\n" for decay in (0.95, 0.951)
)
PROTEIN = """RMSD,F1,F2,F3,F4,F5,F6,F7,F8,F9
17.284,13558.30,4305.35,0.31754,162.1730,1872791.0,215.3590,4287.87,102,27.0302
6.021,6191.96,1623.16,0.26213,53.3894,803446.7,87.2024,3328.91,39,38.5468
"""
WINE = '"fixed acidity";' + ";".join(f'"{number}"' for number in range(10)) + ';"quality"\n'
WINE += "7.4;0.7;0;1.9;0.076;11;34;0.9978;3.51;0.56;9.4;5\n"
YACHT = "-2.3 0.568 4.78 3.99 3.17 0.125 0.11 \n-2.3 0.568 4.78 3.99 3.17 0.150 0.27\n\n"


def zipped(path, **members):
    return write(path, made_up.zipped(**members))


def old_workbook(*sheets):
    book = xlwt.Workbook()
    for number, rows in enumerate(sheets):
        sheet = book.add_sheet(f"Sheet{number}")
        for i, row in enumerate(rows):
            for j, cell in enumerate(row):
                sheet.write(i, j, cell)
    stream = io.BytesIO()
    book.save(stream)
    return stream.getvalue()


def read(name, path):
    return list(candidates(TABLES[name], path))


def test_boston(tmp_path):
    (tmp_path / "boston").write_text(BOSTON)
    (arrays,) = read("boston", tmp_path / "boston")
    assert arrays["X"][0].tolist() == [0.00632, 18, 2.31, 0, 0.538, 6.575, 65.2, 4.09, 1, 296, 15.3, 396.9, 4.98]
    assert arrays["y"].tolist() == [24.0, 21.6]


def test_kin8nm(tmp_path):
    (tmp_path / "kin8nm.arff").write_text(KIN8NM)
    (arrays,) = read("kin8nm", tmp_path / "kin8nm.arff")
    assert arrays["X"].shape == (2, 8)
    assert arrays["X"][1, 0] == 0.36048
    assert arrays["y"].tolist() == [0.53652, 0.30801]


def test_naval_has_both_targets(tmp_path):
    path = zipped(tmp_path / "naval.zip", **{"UCI CBM Dataset/README.txt": "words", "UCI CBM Dataset/data.txt": NAVAL})
    (arrays,) = read("naval", path)
    assert arrays["X"].tolist() == [list(range(1, 17))] * 2
    assert arrays["y"].tolist() == [0.95, 0.951]
    assert arrays["y_all"].tolist() == [[0.95, 0.975], [0.951, 0.975]]


def test_protein_has_its_target_first(tmp_path):
    (arrays,) = read("protein", zipped(tmp_path / "protein.zip", **{"CASP.csv": PROTEIN}))
    assert arrays["y"].tolist() == [17.284, 6.021]
    assert arrays["X"][0].tolist() == [13558.3, 4305.35, 0.31754, 162.173, 1872791, 215.359, 4287.87, 102, 27.0302]


def test_wine_is_the_red_one(tmp_path):
    path = zipped(tmp_path / "wine.zip", **{"winequality-white.csv": "no", "winequality-red.csv": WINE})
    (arrays,) = read("wine", path)
    assert arrays["X"].tolist() == [[7.4, 0.7, 0, 1.9, 0.076, 11, 34, 0.9978, 3.51, 0.56, 9.4]]
    assert arrays["y"].tolist() == [5]


def test_yacht_keeps_its_first_row(tmp_path):
    (arrays,) = read("yacht", zipped(tmp_path / "yacht.zip", **{"yacht_hydrodynamics.data": YACHT}))
    assert arrays["X"][:, -1].tolist() == [0.125, 0.15]
    assert arrays["y"].tolist() == [0.11, 0.27]


def test_power_has_a_candidate_for_every_sheet(tmp_path):
    header, one, two = ["AT", "V", "AP", "RH", "PE"], [14.96, 41.76, 1024.07, 73.17, 463.26], [8, 40, 1010, 90, 480]
    book = workbook([header, one, two], [header, two, one], [["a note"]], [[1, 2]])
    first, second = read("power", zipped(tmp_path / "power.zip", **{"CCPP/Folds5x2_pp.xlsx": book}))
    assert first["X"].tolist() == [one[:4], two[:4]]
    assert second["y"].tolist() == [480, 463.26]


def test_energy_rounds_the_customary_target_alone_and_skips_blank_cells(tmp_path):
    names = [*(f"X{number}" for number in range(1, 9)), "Y1", "Y2"]
    rows = [[0.98, 514.5, 294, 110.25, 7, 2, 0, 0, 6.366, 11.29, None], [None] * 11]
    path = zipped(tmp_path / "energy.zip", **{"ENB2012_data.xlsx": workbook([names, *rows])})
    (arrays,) = read("energy", path)
    assert arrays["X"].tolist() == [[0.98, 514.5, 294, 110.25, 7, 2, 0, 0]]
    assert arrays["y"].tolist() == [6.37]
    assert arrays["y_all"].tolist() == [[6.366, 11.29]]


def test_concrete_is_rounded_to_the_customary_decimals(tmp_path):
    rows = [
        [f"component {number}" for number in range(9)],
        [540.0, 0.0, 0.0, 162.0, 2.5, 1040.0, 676.0, 28, 79.98611076],
        [212.57, 0.0, 100.35, 159.94, 10.45, 1003.8, 903.75, 100, 44.295],
    ]
    book = old_workbook(rows, [])
    (arrays,) = read("concrete", zipped(tmp_path / "concrete.zip", **{"Concrete_Data.xls": book}))
    assert arrays["X"][1].tolist() == [212.6, 0, 100.4, 159.9, 10.5, 1003.8, 903.8, 100]
    assert arrays["y"].tolist() == [79.99, 44.3]


def test_a_file_of_another_kind_is_told(tmp_path):
    path = tmp_path / "wine.zip"
    path.write_bytes(b"not an archive")
    with pytest.raises(
        DataError, match=r"Expected wine.zip to be the raw file of wine, but .* \(File is not a zip file\)"
    ):
        read("wine", path)
    zipped(path, **{"winequality-red.csv": "a;b\n1;x\n"})
    with pytest.raises(DataError, match=r"Expected wine.zip to be the raw file of wine, but it cannot be read as such"):
        read("wine", path)


def test_an_archive_without_the_file_is_told(tmp_path):
    with pytest.raises(
        DataError, match=r"Expected wine.zip to hold winequality-red.csv, but it holds a.csv; its source"
    ):
        read("wine", zipped(tmp_path / "wine.zip", **{"a.csv": "a;b\n1;2\n"}))


def test_a_table_with_other_columns_is_no_candidate(tmp_path):
    assert read("wine", zipped(tmp_path / "wine.zip", **{"winequality-red.csv": "a;b\n1;2\n"})) == []


def test_an_arff_file_without_data(tmp_path):
    (tmp_path / "kin8nm.arff").write_text("@relation 'kin8nm'\n")
    with pytest.raises(DataError, match=r"Expected kin8nm.arff to be the raw file of kin8nm"):
        read("kin8nm", tmp_path / "kin8nm.arff")


def test_a_damaged_workbook_is_told(tmp_path):
    for name, member in (("power", "Folds5x2_pp.xlsx"), ("concrete", "Concrete_Data.xls")):
        with pytest.raises(DataError, match=f"to be the raw file of {name}"):
            read(name, zipped(tmp_path / "a.zip", **{member: b"\xd0\xcf\x11\xe0 no workbook" * 50}))


def test_rounding_is_half_up_also_where_binary_fractions_fall_short():
    values = np.array([0.05, 0.15, 0.25, 0.35, 1.005, -0.26])
    assert _rounded(values, 1).tolist() == [0.1, 0.2, 0.3, 0.4, 1.0, -0.3]
    assert _rounded(np.array([1.005]), 2).tolist() == [1.01]


# Splits


@given(st.integers(2, 400), st.integers(0, 2**32 - 1), st.floats(0.3, 0.7))
def test_parts_are_disjoint_and_complete(rows, trial, share):
    train, test = split(rows, trial, share)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(rows))
    assert len(train) == round(rows * (1 - share))


def test_a_trial_is_the_same_everywhere():
    """The numbers of NumPy's legacy generator, which are guaranteed never to change."""
    train, test = split(10, trial=0)
    assert train.tolist() == [2, 8, 4, 9, 1, 6, 7, 3, 0]
    assert test.tolist() == [5]
    assert split(10, trial=1)[0].tolist() != train.tolist()


@pytest.mark.parametrize(("rows", "test"), [(506, 51), (1030, 103), (308, 31), (45730, 4573)])
def test_sizes_are_the_customary_ones(rows, test):
    assert len(split(rows, 0)[1]) == test


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_that_is_none(share):
    with pytest.raises(SettingsError, match=r"Expected test_share in \(0, 1\), but got"):
        split(10, 0, share)


def test_too_few_rows_for_two_parts():
    with pytest.raises(DataError, match=r"Expected rows enough for both parts, but 3 rows with test_share 0.1"):
        split(3, 0)


def test_standardisation_is_that_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    x = 100 + 7 * torch.randn(50, 4, generator=generator, dtype=torch.float64)
    y = -3 + 5 * torch.randn(50, 1, generator=generator, dtype=torch.float64)
    train, test = split(50, 0, 0.2)
    data = standardise(x, y, train, test)
    scaler, target = StandardScaler().fit(x[train].numpy()), StandardScaler().fit(y[train].numpy())
    np.testing.assert_allclose(data.x_test, scaler.transform(x[test].numpy()), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(data.y_train, target.transform(y[train].numpy()), rtol=1e-5, atol=1e-6)
    assert data.x_train.dtype == data.y_test.dtype == torch.float32
    np.testing.assert_allclose(data.in_units(data.y_test), y[test], rtol=1e-5, atol=1e-5)
    assert data.sizes_in_units(torch.ones(1)).item() == pytest.approx(float(y[train].std(correction=0)))


def test_test_rows_do_not_touch_the_statistics():
    x, y = torch.arange(20.0).reshape(10, 2), torch.arange(10.0)[:, None]
    train, test = split(10, 0, 0.3)
    wild_x, wild_y = x.clone(), y.clone()
    wild_x[test], wild_y[test] = 1e9, 1e9
    one, other = standardise(x, y, train, test), standardise(wild_x, wild_y, train, test)
    assert torch.equal(one.x_train, other.x_train)
    assert (one.centre, one.scale) == (other.centre, other.scale)


def test_a_constant_feature_stays_small():
    """The mean of 0.998 repeated is not exactly 0.998, and a standard deviation of 1e-16 must not blow that up."""
    x = torch.full((11934, 2), 0.998, dtype=torch.float64)
    x[:, 1] = torch.arange(11934)
    y = torch.full((11934, 1), 4.0)
    data = standardise(x, y, *split(11934, 0))
    assert data.x_train[:, 0].abs().max() < 1e-12
    assert (data.centre, data.scale) == (4.0, 1.0)
