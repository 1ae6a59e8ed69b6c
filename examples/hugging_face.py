"""A transformers model for sequence classification: dict batches with labels, no download.

python examples/hugging_face.py

Needs transformers.
"""

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

import splitpoint as sp

Rows = list[dict[str, Tensor]]


def sentences(count: int) -> Rows:
    """Made-up token ids; the label says whether low or high ids prevail, with one label in ten at random."""
    rows = []
    for _ in range(count):
        label = torch.randint(2, ())
        ids = torch.randint(2, 60, (12,)) + 38 * (torch.rand(12) < 0.3 + 0.4 * label)
        label = torch.where(torch.rand(()) < 0.1, torch.randint(2, ()), label)
        rows.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": label})
    return rows


def main() -> None:
    """Build a tiny BERT from a config, train it for a few steps, and calibrate it."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(vocab_size=100, max_position_embeddings=16, **sizes))
    train, held_out, test = (DataLoader(sentences(count), batch_size=50) for count in (600, 300, 300))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(15):
        for batch in train:
            optimiser.zero_grad()
            model(**batch).loss.backward()
            optimiser.step()

    clf = sp.SplitPointClassifier().fit(model, train, calibration=held_out, progress=False)
    print(f"features: {clf.layer} ({clf.tap.reason})")
    out = clf.predict(test)
    label = torch.cat([batch["labels"] for batch in test])
    print("probabilities  accuracy    ECE    NLL")
    for name, probs in {"base model": out.base_probs, "calibrated": out.probs}.items():
        scores = [metric(probs, label) for metric in (sp.metrics.accuracy, sp.metrics.ece, sp.metrics.nll)]
        print(f"{name:13} {scores[0]:9.3f} {scores[1]:6.3f} {scores[2]:6.3f}")

    one = clf(input_ids=torch.full((1, 12), 99), attention_mask=torch.ones(1, 12, dtype=torch.long))
    print(f"a sentence of one repeated word: class {one.label.item()}, probability {one.probs.max():.2f}")


if __name__ == "__main__":
    main()
