"""Raw files in the formats of their sources, small, made here."""

import importlib
import io
import zipfile

import numpy as np
import openpyxl
import pytest
import xlwt

from splitpoint.datasets import raw, uci
from splitpoint.errors import DataError, SettingsError

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
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return path


def workbook(*sheets):
    book = openpyxl.Workbook()
    book.remove(book.active)
    for rows in sheets:
        sheet = book.create_sheet()
        for row in rows:
            sheet.append(row)
    stream = io.BytesIO()
    book.save(stream)
    return stream.getvalue()


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
    return list(raw.candidates(name, path))


def test_every_set_has_a_reader():
    assert set(raw.RAW) == set(uci.TABLES)


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


@pytest.mark.parametrize(("name", "package"), [("energy", "openpyxl"), ("power", "openpyxl"), ("concrete", "xlrd")])
def test_a_missing_package_is_named_with_the_cure(name, package, monkeypatch):
    raw.require(name)

    def missing(wanted, *_):
        raise ModuleNotFoundError(f"No module named {wanted!r}", name=wanted)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(SettingsError, match=rf"package {package}.*pip install '.\[data\]' in a checkout"):
        raw.require(name)
    raw.require("yacht")


def test_rounding_is_half_up_also_where_binary_fractions_fall_short():
    values = np.array([0.05, 0.15, 0.25, 0.35, 1.005, -0.26])
    assert raw._rounded(values, 1).tolist() == [0.1, 0.2, 0.3, 0.4, 1.0, -0.3]
    assert raw._rounded(np.array([1.005]), 2).tolist() == [1.01]
