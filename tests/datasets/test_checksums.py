import hashlib

import numpy as np

from splitpoint.datasets import checksums


def test_a_file_has_the_published_checksums_of_abc(tmp_path):
    path = tmp_path / "abc"
    path.write_bytes(b"abc")
    assert checksums.of_file(path, "md5") == "md5:900150983cd24fb0d6963f7d28e17f72"
    sha = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert checksums.of_file(path, "sha256") == sha
    assert checksums.file_matches(path, sha)
    assert checksums.file_matches(path, "size:3")
    assert not checksums.file_matches(path, "size:4")


def test_layout_and_byte_order_of_an_array_do_not_matter_but_values_do():
    array = np.arange(6.0).reshape(2, 3)
    expected = "sha256:" + hashlib.sha256(np.arange(6, dtype="<f8").tobytes()).hexdigest()
    assert checksums.of_array(array) == expected
    assert checksums.of_array(np.asfortranarray(array)) == expected
    assert checksums.of_array(array.astype(">f8")) == expected
    assert checksums.of_array(array.T) != expected


def test_the_order_of_rows_does_not_matter_but_what_belongs_together_does():
    x, y = np.array([[1.0, 2.0], [1.0, 0.0], [3.0, 4.0]]), np.array([5.0, 6.0, 7.0])
    whole = checksums.of_rows([x, y])
    assert checksums.of_rows([x[[2, 0, 1]], y[[2, 0, 1]]]) == whole
    assert checksums.of_rows([x[[2, 0, 1]], y]) != whole
    assert checksums.of_rows([x, y + 1e-9]) != whole
