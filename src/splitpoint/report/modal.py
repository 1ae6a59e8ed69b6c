"""Findings of experiments with several modalities: changes with noise, conflicts and blame, claims, and defects."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from splitpoint.bench.modal_artefacts import ENTROPY, OWN, SpoiltDrawing
from splitpoint.bench.modal_experiments import AGREEMENT, DATASET, DEFECTIVE
from splitpoint.bench.modal_trials import CLEAN, CONFLICT, FUSED, NOISY
from splitpoint.bench.record import Cell, Record
from splitpoint.datasets import SETS
from splitpoint.report import facts
from splitpoint.report.claims import CLAIMS, KINDS, Experiment, verdict
from splitpoint.report.detection import paired
from splitpoint.report.findings import Finding, Grid
from splitpoint.report.published import SOURCE, find
from splitpoint.report.tables import NO_VERDICT, Entry, summarised

SUITE = "multimodal"
PLAIN, PAPER = "softmax", "splitpoint_paper"
CONFLICTS = {AGREEMENT: "conflict", "rcml": "conflict", PAPER: "SDS", "splitpoint_paper_calibrated": "SDS"}
"""What the own score of a method is called; that of the others is their support."""

OURS = ("splitpoint_paper", "splitpoint_paper_calibrated", "splitpoint", "splitpoint_conformal")
"""Methods whose scores the claims are about."""

DEFECTS = (
    "MC dropout and deep ensembles: the softmax of their uncertainty is taken over the rows of the batch, not over the "
    "classes. How strange a row is cancels, and AUROC out of distribution is near 0.5.",
    "RCML: the loss of the fused evidence is summed over the batch, those of the single views are averaged, so that "
    "its weight grows with the batch.",
    "In the clean set 10% of the images are noisy too, so that changes are not measured against clean rows.",
    "Label noise switches the labels of each modality by themselves and pairs rows by the switched ones: the true "
    "classes of the three inputs agree in 26% of the rows.",
    "The branch of the paper's own method that trains its heads afterwards is never taken: it compares the name of a "
    "class with one that does not exist.",
)
"""Of the published code; figures of the paper come from it."""


def findings(records: Sequence[Record], drawings: Sequence[SpoiltDrawing]) -> tuple[Finding, ...]:
    """One section for each data set and protocol."""
    grouped: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record.suite == SUITE:
            grouped.setdefault((record.protocol, record.dataset), []).append(record)
    protocols = facts.ordered((protocol for protocol, _ in grouped), facts.PROTOCOLS)
    datasets = facts.ordered((dataset for _, dataset in grouped), SETS)
    order = sorted(grouped, key=lambda place: (protocols.index(place[0]), datasets.index(place[1])))
    return tuple(_finding(*place, grouped[place], drawings) for place in order)


def _finding(protocol: str, dataset: str, records: Sequence[Record], drawings: Sequence[SpoiltDrawing]) -> Finding:
    own = [one for one in drawings if (one.cell.protocol, one.cell.dataset) == (protocol, dataset)]
    experiment = Experiment.of(records)
    title = f"{facts.title(dataset, SETS)}, {facts.title(protocol, facts.PROTOCOLS)}: noise, conflict and blame"
    parts: list[str | Grid] = [*_changes(experiment, protocol), *_claims(experiment)]
    parts += [*_spoilt(experiment, own), *_blame(own), *_accuracy(experiment, own), *_entropies(experiment, protocol)]
    if parts:
        parts.append("Defects of the published code, which its figures carry: " + " ".join(DEFECTS))
    return Finding(title, tuple(parts))


# Changes with noise


def _changes(experiment: Experiment, protocol: str) -> Iterator[Grid]:
    """The table of the paper: accuracy and AUROC on clean rows, and how both scores change with each noise."""
    noises = [noise for noise in NOISY if any(key[1] == noise for key in experiment.groups)]
    if not noises:
        return
    rows = []
    for network, method in _rows(experiment):
        cell = Cell(SUITE, protocol, CLEAN, DATASET, method, network=network)
        cells = [
            _beside(experiment.entry(network, CLEAN, method, metric), cell, metric, 3)
            for metric in ("accuracy", "auroc_ood")
        ]
        for noise in noises:
            for kind in KINDS:
                changes = experiment.changes(network, noise, method, kind)
                entry = summarised(changes) if changes else None
                cells.append(_beside(entry, cell._replace(noise=noise), f"{kind}_change_pct", 1))
        rows.append((f"{network}, {facts.title(method)}", *cells))
    heads = [f"{noise}, {kind} %" for noise in noises for kind in KINDS]
    yield Grid(
        "Change of the mean scores with noise",
        ("network and method", "accuracy", "AUROC out of distr.", *heads),
        tuple(rows),
        note="Mean of the trials ± standard error; changes against clean rows of the same trial, for networks trained "
        f"anew. {NO_VERDICT}: the figure for LUMA in {SOURCE}, whose rows are others and whose code has the defects "
        "below. A score that is not positive on clean rows has no percentage.",
    )


def _rows(experiment: Experiment) -> list[tuple[str, str]]:
    """Networks and methods that have a mean score on clean rows: single modalities first."""
    found = {
        (network, method)
        for (network, condition, method, variant) in experiment.groups
        if condition == CLEAN and not variant and method != AGREEMENT
    }
    methods = facts.ordered(method for _, method in found)
    networks = list(dict.fromkeys(network for network, *_ in experiment.groups))
    return sorted(found, key=lambda row: (row[0] == FUSED, networks.index(row[0]), methods.index(row[1])))


def _beside(entry: Entry | None, cell: Cell, metric: str, decimals: int) -> str:
    """Our number with the published one beside it."""
    figure = find(cell, metric)
    text = "-" if entry is None else entry.text(decimals)
    return text if figure is None else f"{text} ({NO_VERDICT} {figure.text})"


# Claims


def _claims(experiment: Experiment) -> Iterator[Grid]:
    """Whether each claim holds, for every network and method."""
    rows = []
    for claim in CLAIMS:
        for network, method in _rows(experiment):
            for noise in claim.conditions if method in OURS else ():
                changes = experiment.changes(network, noise, method, claim.kind)
                if changes:
                    rose = sum(change is not None and change > 0 for change in changes)
                    row = (claim.text, f"{facts.title(method)}, {network}", noise, summarised(changes).text(1))
                    rows.append((*row, f"{rose} of {len(changes)}", verdict(changes)))
    if rows:
        yield Grid(
            "Three claims of the paper",
            ("claim", "method and network", "noise", "change %", "trials with a rise", "verdict"),
            tuple(rows),
            note="Holds: the mean change is more than two standard errors above 0; does not hold: as far below; open: "
            "between the two.",
        )


# Conflict and blame


def _spoilt(experiment: Experiment, drawings: Sequence[SpoiltDrawing]) -> Iterator[str | Grid]:
    """How well every score finds one spoilt modality, by which one it is, and rows where all are strange."""
    own = [one for one in drawings if one.scores and not one.cell.variant]
    rows = [row for method, trials in _by_method(own) for row in _scores(experiment, method, trials)]
    if rows:
        head = ("score", *own[0].modalities, "mean", "all strange (out of distribution)")
        yield Grid("AUROC by the modality that is of another class", head, tuple(rows))
    yield from _complement(experiment)


def _accuracy(experiment: Experiment, drawings: Sequence[SpoiltDrawing]) -> Iterator[Grid]:
    """Accuracy where one modality is spoilt, by which one it is."""
    for condition in facts.ordered((one.cell.noise for one in drawings), facts.NOISES):
        own = [one for one in drawings if one.cell.noise == condition and one.accuracy and not one.cell.variant]
        rows = []
        for method, trials in _by_method(own):
            columns = [summarised(column).text(3) for column in zip(*(one.accuracy for one in trials), strict=True)]
            clean = experiment.entry(FUSED, CLEAN, method, "accuracy")
            rows.append((facts.title(method), "-" if clean is None else clean.text(3), *columns))
        if rows:
            head = ("method", "none", *own[0].modalities)
            yield Grid(f"Accuracy, {facts.title(condition, facts.NOISES)}", head, tuple(rows))


def _by_method(drawings: Sequence[SpoiltDrawing]) -> Iterator[tuple[str, list[SpoiltDrawing]]]:
    for method in facts.ordered(one.cell.method for one in drawings):
        yield method, [one for one in drawings if one.cell.method == method]


def _scores(experiment: Experiment, method: str, trials: Sequence[SpoiltDrawing]) -> Iterator[tuple[str, ...]]:
    """A row for the own score of a method, and one for the entropy of the base network."""
    for score in (OWN, ENTROPY) if method == PLAIN else (OWN,):
        values = [found.auroc for one in trials for found in one.scores if found.name == score]
        columns = [summarised(column).text(3) for column in zip(*values, strict=True)]
        mean = summarised([statistics.fmean(value) for value in values]).text(3)
        strange = experiment.entry(FUSED, CLEAN, method, "auroc_ood" if score == OWN else "auroc_ood_entropy")
        name = CONFLICTS.get(method, "support") if score == OWN else "entropy"
        yield (f"{facts.title(method)}, {name}", *columns, mean, "-" if strange is None else strange.text(3))


def _complement(experiment: Experiment) -> Iterator[str]:
    """Conflict against SDS, trial by trial: one modality of another class, and all of them strange."""
    found = []
    for where, condition, metric in (
        ("where one modality is of another class", CONFLICT, "auroc_conflict"),
        ("where all are strange", CLEAN, "auroc_ood"),
    ):
        pair = [experiment.values(FUSED, condition, method, metric) for method in (AGREEMENT, PAPER)]
        difference = paired(*pair)
        if difference.whole:
            means = [summarised(list(values.values())).text(3) for values in pair]
            found.append(f"{where} {means[0]} against {means[1]} (difference {difference.text(3)})")
    if found:
        yield f"AUROC of conflict against SDS, {'; '.join(found)}."


def _blame(drawings: Sequence[SpoiltDrawing]) -> Iterator[Grid]:
    """Which modality is blamed for which: a heat map for every method that names one."""
    blaming = [one for one in drawings if one.blamed and not one.cell.variant]
    for method, own in _by_method(blaming):
        names, rows, shares = own[0].modalities, [], []
        for place, name in enumerate(names):
            columns = [summarised(column) for column in zip(*(one.blamed[place] for one in own), strict=True)]
            rows.append((name, *(column.text(2) for column in columns)))
            shares.append(tuple(column.mean for column in columns))
        right = summarised([statistics.fmean(row[place] for place, row in enumerate(one.blamed)) for one in own])
        yield Grid(
            f"Blame by {facts.title(method)}",
            ("spoilt", *(f"{name} blamed" for name in names)),
            tuple(rows),
            tuple(shares),
            f"Share of the rows. The right one is blamed in {right.text(3)}, by chance in {1 / len(names):.3f}.",
        )


# The entropy of the published code


def _entropies(experiment: Experiment, protocol: str) -> Iterator[Grid]:
    """AUROC out of distribution of mixtures with the softmax over classes, over the batch, and as published."""
    rows = []
    for network, condition, method, variant in experiment.groups:
        if condition != CLEAN or variant not in {defective.name for defective in DEFECTIVE.values()}:
            continue
        right, wrong = (experiment.entry(network, CLEAN, method, "auroc_ood", own) for own in ("", variant))
        if right is None and wrong is None:
            continue
        figure = find(Cell(SUITE, protocol, CLEAN, DATASET, method, network=network), "auroc_ood")
        texts = ["-" if entry is None else entry.text(3) for entry in (right, wrong)]
        rows.append((f"{network}, {facts.title(method)}", *texts, "-" if figure is None else figure.text))
    if rows:
        yield Grid(
            "AUROC out of distribution by the axis of the softmax",
            ("network and method", "over classes", "over the batch, as the published code has it", "published (LUMA)"),
            tuple(sorted(rows)),
        )
