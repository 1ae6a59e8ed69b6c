"""One entry in a table is enough: a toy of each kind shows in every command and report without another edit."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import splitpoint as sp
from made_up import made_up_table
from problems import base, problem
from splitpoint.baselines import METHODS, Recipe
from splitpoint.baselines.posthoc import AtOutput, BaselinePredictor, Fitted, PostHocBaseline
from splitpoint.baselines.settings import RegressionMethod
from splitpoint.bench.record import Journal
from splitpoint.bench.suites import SUITES
from splitpoint.bench.suites.cubic import CUBIC
from splitpoint.cli import main
from splitpoint.datasets.entry import VARIABLE
from splitpoint.datasets.registry import SETS
from splitpoint.metrics import METRICS
from splitpoint.metrics.table import Metric
from splitpoint.tasks import Answer, RegressionAnswer


@dataclass(frozen=True, kw_only=True)
class ToyRival(PostHocBaseline, RegressionMethod[BaselinePredictor]):
    """Intervals of one width: the largest residual of the training rows on either side."""

    def _learn(self, rows, _held_out, _seed):
        return {"radius": rows.table.column("residual").abs().amax()}

    def _answer(self, fitted: Fitted, _at_output: AtOutput, output: Tensor) -> Answer:
        half = fitted["radius"] * torch.ones_like(output).unsqueeze(-1).expand(*output.shape, len(self.levels))
        width, mean = 2 * half[..., -1], output.unsqueeze(-1)
        bounds = {"lowers": mean - half, "uppers": mean + half}
        return RegressionAnswer(
            levels=self.levels, mean=output, **bounds, aleatoric=width, epistemic=output.abs(), total=width
        )


def toy_metric(evidence):
    """Half of the mean width."""
    return float((evidence.prediction.upper - evidence.prediction.lower).mean()) / 2


def fewer_rows(work, number):
    """A trial of the cubic experiment with a tenth of its rows."""
    own = CUBIC.trial(work, number)
    return replace(own, train=tuple(part[:200] for part in own.train))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A folder with records of the toys, made by the command line."""
    data, folder = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(data))
        patch.setitem(METHODS, "toy_rival", Recipe(ToyRival, "Toy rival", "model", "1", "|mean|", "Nobody 2026"))
        patch.setitem(METRICS, "toy_metric", Metric("toy_metric", toy_metric, "Toy metric", "lower", task="regression"))
        patch.setitem(SETS, "toy_table", made_up_table(data, "toy_table", title="Toy table"))
        suite = replace(CUBIC, name="toy-suite", title="Toy suite", help="toys at play", trial=fewer_rows)
        patch.setitem(SUITES, "toy-suite", suite)
        run = ["--methods", "gaussian", "toy_rival", "--epochs", "1", "--jobs", "1", "--quiet", "--out", str(folder)]
        assert main(["bench", "uci", "--datasets", "toy_table", "--trials", "2", *run]) == 0
        assert main(["bench", "toy-suite", "--noise", "gaussian", "--trials", "2", *run]) == 0
        assert main(["report", str(folder)]) == 0
        yield folder


def printed(capsys, *command):
    """What a command prints, in one line."""
    capsys.readouterr()
    assert main([*command]) == 0
    return " ".join(capsys.readouterr().out.split())


def help_of(capsys, *command):
    """The help of a command, in one line."""
    capsys.readouterr()
    with pytest.raises(SystemExit, match="0"):
        main([*command, "--help"])
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("results")
def test_a_rival_is_among_the_methods(capsys):
    assert "toy_rival regression model 1 Nobody 2026" in printed(capsys, "methods")
    for suite in ("uci", "cubic", "toy-suite"):
        assert "toy_rival" in help_of(capsys, "bench", suite)
    assert "toy_rival" not in help_of(capsys, "bench", "images"), "it is for numbers"


@pytest.mark.usefixtures("results")
def test_a_rival_has_the_contract_of_a_method(tmp_path):
    own = problem("scalar")
    uq = METHODS["toy_rival"](confidence_level=0.9).fit(base("scalar"), own.data, progress=False)
    assert (uq(own.data[0]).upper >= own.data[1]).all()
    uq.save(tmp_path / "uq")
    assert torch.equal(sp.load(tmp_path / "uq", base("scalar"))(own.fresh).upper, uq(own.fresh).upper)
    with pytest.raises(sp.SettingsError, match=r"Expected settings of ToyRival among .* but got epochs"):
        METHODS["toy_rival"](epochs=3)


@pytest.mark.usefixtures("results")
def test_a_metric_is_evaluated():
    own = problem("scalar")
    uq = METHODS["toy_rival"]().fit(base("scalar"), own.data, progress=False)
    found = sp.evaluate(uq, own.calibration)
    assert found["toy_metric"] == pytest.approx(found["mpiw"] / 2, rel=1e-5)


@pytest.mark.usefixtures("results")
def test_a_data_set_is_listed_checked_and_offered(capsys):
    assert "toy_table 400 x 3" in printed(capsys, "data", "list")
    assert "toy_table" in printed(capsys, "data", "check", "toy_table")
    assert "toy_table" in help_of(capsys, "bench", "uci")


@pytest.mark.usefixtures("results")
def test_a_suite_is_a_command(capsys):
    assert "toys at play" in help_of(capsys, "bench")
    assert "law of the noise" in help_of(capsys, "bench", "toy-suite")


def test_all_of_them_are_in_the_records(results):
    records = Journal(results).read()
    assert {(r.suite, r.dataset, r.method, r.trial) for r in records} == {
        (suite, dataset, method, trial)
        for suite, dataset in (("uci", "toy_table"), ("toy-suite", "cubic"))
        for method in ("gaussian", "toy_rival")
        for trial in (0, 1)
    }
    assert [record.error for record in records if record.error] == []
    assert all(record.metrics["toy_metric"] > 0 for record in records)


@pytest.mark.parametrize("title", ["Toy rival", "Toy metric", "Toy table", "Toy suite"])
def test_all_of_them_are_in_the_report_under_their_titles(results, title):
    pages = [path.read_text() for path in results.iterdir() if path.suffix in (".html", ".md")]
    assert len(pages) >= 2
    assert all(title in page for page in pages)
