"""What methods say of rows with several modalities: the defect of the published code, and metrics of spoilt rows."""

from dataclasses import replace

import pytest
import torch

from splitpoint.baselines import METHODS
from splitpoint.bench.modal_evidence import Said, asked, defective, means, on_conflict
from splitpoint.bench.modal_networks import late_fusion
from splitpoint.bench.modal_paper import averaged
from splitpoint.bench.modal_trials import Rows
from splitpoint.prediction import ClassificationPrediction


def prediction(probs, support):
    entropy = -(probs * probs.log()).sum(1)
    return ClassificationPrediction(
        entropy, support, entropy, None, probs=probs, base_probs=probs, label=probs.argmax(1)
    )


def rows(count=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=generator)
    views = {name: torch.randn(count, 4, generator=generator) + labels[:, None] for name in ("a", "b")}
    return Rows(views, labels, torch.arange(count))


def test_the_published_entropy_takes_the_softmax_over_the_batch():
    train = rows()
    networks = [late_fusion(train.shapes, 3) for _ in range(2)]
    predictor = METHODS["deep_ensemble"](members=2).assemble(networks, train.data, progress=False)
    wrong, right = defective(predictor)(train).prediction, predictor(*train.arguments)
    assert torch.equal(wrong.probs, right.probs)
    logits = [network.eval()(*train.arguments).detach() for network in networks]
    over_batch = [one.exp() / one.exp().sum(0) for one in logits]
    within = sum(-(q * q.log()).sum(1) for q in over_batch) / 2
    mean = sum(over_batch) / 2
    torch.testing.assert_close(wrong.aleatoric, within)
    torch.testing.assert_close(wrong.epistemic, -(mean * mean.log()).sum(1) - within, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(wrong.aleatoric, right.aleatoric, atol=0.1)


def test_rows_are_asked_about_in_batches_and_in_order():
    sizes = []

    def answer(part):
        sizes.append(len(part))
        return Said(None, part.inputs["a"][:, 0], part.inputs["b"])

    given = rows(300)
    said = asked(answer, given)
    assert sizes == [128, 128, 44]
    assert torch.equal(said.conflict, given.inputs["a"][:, 0])
    assert torch.equal(said.blame, given.inputs["b"])


def test_metrics_of_spoilt_rows_are_means_over_modalities():
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    known = Said(prediction(probs, torch.tensor([0.0, 1.0])))
    spoilt = {
        "a": Said(prediction(probs.flip(1), torch.tensor([2.0, 3.0]))),
        "b": Said(prediction(probs, torch.tensor([0.0, 1.0]))),
    }
    assert on_conflict(known, spoilt) == {"auroc_conflict": 0.75, "auroc_conflict_entropy": 0.5}
    found = means(spoilt, torch.tensor([0, 1]))
    assert found["accuracy"] == 0.5
    assert found["mean_epistemic"] == 1.5


def test_conflict_stands_before_support_and_blame_is_counted():
    known = Said(None, torch.tensor([0.0, 0.0]), torch.zeros(2, 2))
    spoilt = {
        "a": Said(None, torch.tensor([1.0, 1.0]), torch.tensor([[1.0, 0], [0, 1]])),
        "b": Said(None, torch.tensor([1.0, 0.0]), torch.tensor([[0.0, 1], [0, 1]])),
    }
    found = on_conflict(known, spoilt)
    assert found == {"auroc_conflict": pytest.approx((1 + 0.75) / 2), "right_blame": 0.75}
    assert means(spoilt, torch.tensor([0, 1])) == {}


def test_mars_of_modalities_are_averaged_before_the_score():
    probs = torch.tensor([[0.5, 0.5], [0.8, 0.2]])
    mars = [torch.tensor([[0.5, 0.5], [0.3, 0.3]]), torch.tensor([[0.3, 0.5], [0.34, 0.3]])]
    found = averaged([replace(prediction(probs, torch.zeros(2)), mar=mar) for mar in mars])
    torch.testing.assert_close(found.mar, (mars[0] + mars[1]) / 2)
    torch.testing.assert_close(found.sds, torch.tensor([0.1, 0.02]), atol=1e-6, rtol=0)
    assert torch.equal(found.support, found.epistemic)
