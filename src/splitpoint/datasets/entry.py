"""Where data sets lie on this machine, and what is said of each.

An entry is a table of numbers, a set of labelled images, a set of scenes, whose images may have a depth each, or a set
of rows with several modalities.

They lie in the folders that the environment variable SPLITPOINT_DATA names.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeAlias, TypeVar, final

from splitpoint.errors import DataError, SettingsError

if TYPE_CHECKING:
    from splitpoint.datasets.arrays import Numbers
    from splitpoint.datasets.image_set import ImageSet
    from splitpoint.datasets.modal_rows import ModalSplits
    from splitpoint.datasets.scene_set import SceneSet

VARIABLE = "SPLITPOINT_DATA"

Kind: TypeAlias = Literal["table", "images", "scenes", "modal"]


def folders() -> list[Path]:
    """The colon-separated folders of SPLITPOINT_DATA, in their order."""
    return [Path(folder) for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder]


def locate(*names: str) -> Path | None:
    """The first of `names` that a folder has, taken from the first of the `folders` that has it, or None."""
    return next((folder / name for name in names for folder in folders() if (folder / name).exists()), None)


def command_for(name: str) -> str:
    """What to run to get the data set `name`."""
    return f"splitpoint data download {name}" + ("" if folders() else " --to DIR")


def find(name: str, remedy: str = "") -> Path:
    """As `locate`, but what is missing is an error; `remedy` ends its sentence with something else to do."""
    found = locate(name)
    if found is None:
        raise missing(name, f"set it to a folder that holds {name}{remedy}")
    return found


def missing(what: str, remedy: str) -> DataError:
    """The error that says where `what` was looked for; `remedy` is what to do."""
    searched = ", ".join(str(f) if f.is_dir() else f"{f} (no such folder)" for f in folders()) or "no folder"
    return DataError(f"Expected to find {what}, but {VARIABLE} names {searched}; {remedy}.")


# Entries


@dataclass(frozen=True)
class Source:
    """One file to download and its checksum (``kind:value``), empty where only the content can be verified."""

    url: str
    checksum: str = ""

    @property
    def file_name(self) -> str:
        """Last part of the address."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class Entry(ABC):
    """One data set: what is known of it whatever its kind.

    Attributes:
        kind: tells tables, labelled images, scenes and rows with several modalities apart.
        name: the key in the table of data sets, which functions and commands take.
        title: what people call it.
        sources: the files to download; a set without them cannot be downloaded.
        licence: as the source states it.
        by_hand: for a set without sources, the clause that says how to get it.
    """

    kind: ClassVar[Kind]

    name: str
    title: str
    sources: tuple[Source, ...]
    licence: str
    by_hand: str = ""

    @property
    @abstractmethod
    def paths(self) -> tuple[str, ...]:
        """Every place below a data folder where the set may lie, the one that a download fills first."""

    @abstractmethod
    def size_at(self, path: Path | None) -> str:
        """Size of what lies at `path`, or of the set where nothing does."""

    @property
    def path(self) -> str:
        """The place below a data folder that a download fills."""
        return self.paths[0]

    @property
    def cure(self) -> str:
        """The clause that says how to get the set: a command, or what to do by hand."""
        return self.by_hand or f"get it again with: {command_for(self.name)}"


@final
@dataclass(frozen=True, kw_only=True)
class TableEntry(Entry):
    """A regression set in one file ``uci/NAME.npz``.

    It has `X` (N, D) and `y` (N,) in float64, and where there are several targets all of them in `y_all` (N, targets).

    Attributes:
        rows: N.
        features: D.
        targets: names of the targets; `y` is the first.
        checksums: of the arrays, and of all columns with the `rows` sorted, which is the same whatever their order.
        reader: takes the bytes of the raw file and returns the tables in it, of which one must be the set.
        member: name of the raw file in the archive that is downloaded; empty where that is no archive.
        targets_first: whether the targets are the first columns of the raw file and not the last.
        decimals: of `X` and `y`, which are rounded to them, half up, where the raw file has more.
    """

    kind: ClassVar[Kind] = "table"

    rows: int
    features: int
    targets: tuple[str, ...]
    checksums: Mapping[str, str]
    reader: Callable[[bytes], list[Numbers]]
    member: str = ""
    targets_first: bool = False
    decimals: tuple[int | None, int | None] = (None, None)

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays in the file."""
        return tuple(name for name in self.checksums if name != "rows")

    @property
    def paths(self) -> tuple[str, ...]:
        """The one place where the set lies."""
        return (f"uci/{self.name}.npz",)

    @property
    def size(self) -> str:
        """Rows and features."""
        return f"{self.rows:,} x {self.features}"

    def size_at(self, path: Path | None) -> str:  # noqa: ARG002  # a table is whole wherever it lies
        """Rows and features."""
        return self.size


_Reader = TypeVar("_Reader", covariant=True)


@dataclass(frozen=True)
class Form(Generic[_Reader]):
    """One form in which a set of images is read.

    Attributes:
        path: where it lies below a data folder.
        reader: takes the entry, where the set lies, and the part (``train`` or ``test``); returns the part.
        checksums: of the arrays of an npz or HDF5 file or of the files in a folder; ``files:N`` (or ``files:N-M``) is
            how many files a pattern must find. Empty where nobody knows what it must be.
        size: where the form holds only some of the images, or smaller ones.
    """

    path: str
    reader: _Reader
    checksums: Mapping[str, str]
    size: str = ""


@dataclass(frozen=True, kw_only=True)
class FormsEntry(Entry, Generic[_Reader]):
    """A set that may lie in several forms.

    Attributes:
        size: images, height, width and channels.
        forms: in which the set is read, preferred ones first; a download makes the first one.
        trainable: whether there is a training part.
        ood: names of the sets that experiments take as out of distribution.
    """

    size: str
    forms: tuple[Form[_Reader], ...]
    trainable: bool = True
    ood: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """The places of the forms."""
        return tuple(form.path for form in self.forms)

    def form_at(self, path: Path) -> Form[_Reader]:
        """The form that lies at `path`; the first one where the path is of none."""
        return next((form for form in self.forms[1:] if path.match(form.path)), self.forms[0])

    def size_at(self, path: Path | None) -> str:
        """Size of the form that lies at `path`."""
        own = "" if path is None else self.form_at(path).size
        return own or self.size

    def form_for(self, part: str) -> tuple[Form[_Reader], Path]:
        """The preferred form that is there, with its place, for a `part` that the set has.

        DataError says what to do where none is there.
        """
        if part not in ("train", "test"):
            raise SettingsError(f"Expected the part 'train' or 'test' of {self.name}, but got {part!r}.")
        if part == "train" and not self.trainable:
            raise DataError(f"Expected the part 'test' of {self.name}, which has no other, but got 'train'.")
        for form in self.forms:
            path = locate(form.path)
            if path is not None:
                return form, path
        remedy = self.by_hand or f"put it into such a folder or run: {command_for(self.name)}"
        raise missing(" or ".join(self.paths), remedy)


ImageReader: TypeAlias = "Callable[[ImageEntry, Path, str], ImageSet]"
SceneReader: TypeAlias = "Callable[[SceneEntry, Path, str], SceneSet]"
"""What takes an entry, where its set lies, and a part, and returns the part."""


@final
@dataclass(frozen=True, kw_only=True)
class ImageEntry(FormsEntry[ImageReader]):
    """A set of labelled images.

    Attributes:
        classes: how many there are.
        packed: how sources become the first form. ``idx`` are four files of the MNIST format that become one npz file;
            ``tar`` is an archive in which the files of the form lie somewhere; ``folder`` is an archive of a folder
            with folders in it; ``plain`` files stay as they are.
        mirrored: whether images may be mirrored in training, which turns digits and letters into none.
        adversarial: name of a set of natural images that networks mistake, which stands for an attack.
    """

    kind: ClassVar[Kind] = "images"

    classes: int
    packed: Literal["idx", "tar", "folder", "plain"]
    mirrored: bool = True
    adversarial: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class SceneEntry(FormsEntry[SceneReader]):
    """A set of photographs of scenes, in the order in which they were taken.

    Attributes:
        depth: whether every image has a map of depths, which networks learn; sets without are out of distribution.
    """

    kind: ClassVar[Kind] = "scenes"

    depth: bool = False


ModalReader: TypeAlias = "Callable[[ModalEntry, Path, int], ModalSplits]"
"""What takes an entry, where its set lies, and a seed, and returns the parts of the set."""


@final
@dataclass(frozen=True, kw_only=True)
class ModalEntry(Entry):
    """A set of rows with several modalities.

    Attributes:
        size: rows, and how many inputs each of them has.
        modalities: their names.
        classes: how many are in distribution.
        place: where the set lies below a data folder.
        reader: splits and reads it.
        checksums: as those of a `Form`.
    """

    kind: ClassVar[Kind] = "modal"

    size: str
    modalities: tuple[str, ...]
    classes: int
    place: str
    reader: ModalReader
    checksums: Mapping[str, str]

    @property
    def paths(self) -> tuple[str, ...]:
        """The one place where the set lies."""
        return (self.place,)

    def size_at(self, path: Path | None) -> str:  # noqa: ARG002  # a set is whole wherever it lies
        """Rows, and how many inputs each of them has."""
        return self.size
