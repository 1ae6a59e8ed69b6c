"""Which of three sensors is lying: conflict and blame on a network that is trained already.

python examples/which_modality.py
"""

import torch
from torch import Tensor, nn

import splitpoint as sp

SENSORS, STATES = {"vibration": 12, "sound": 8, "temperature": 4}, 5


def machines(count: int, seed: int) -> tuple[list[Tensor], Tensor]:
    """What every sensor of a machine reads, (N, size) each, and the state that the machine is in."""
    typical, own = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    state = torch.randint(STATES, (count,), generator=own)
    means = [2 * torch.randn(STATES, size, generator=typical) for size in SENSORS.values()]
    return [mean[state] + torch.randn(count, mean.shape[1], generator=own) for mean in means], state


class Fusion(nn.Module):
    """A branch for each sensor; the answer is the mean of their logits."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.ModuleDict({n: nn.Sequential(nn.Linear(s, 32), nn.ReLU()) for n, s in SENSORS.items()})
        self.outputs = nn.ModuleDict({name: nn.Linear(32, STATES) for name in SENSORS})

    def forward(self, *readings: Tensor) -> Tensor:
        """Logits (N, STATES) of one reading for each sensor."""
        pairs = zip(SENSORS, readings, strict=True)
        return torch.stack([self.outputs[name](self.features[name](given)) for name, given in pairs]).mean(0)


def main() -> None:
    """Train the network, fit Agreement, and let one sensor after the other read another machine."""
    torch.manual_seed(0)
    (train, state), held_out, (test, truth) = (machines(n, n) for n in (1000, 400, 600))
    net = Fusion()
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(100):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(*train), state).backward()
        optimiser.step()
    agreement = sp.Agreement(branches={name: f"features.{name}" for name in SENSORS})
    found = agreement.fit(net, (*train, state), calibration=(*held_out[0], held_out[1]), progress=False)
    honest = found(*test)
    for place, name in enumerate(SENSORS):
        other = (truth[:, None] != truth).float().multinomial(1).squeeze(1)  # a machine in another state
        lying = [given[other] if sensor == place else given for sensor, given in enumerate(test)]
        said, right = found(*lying), sp.metrics.accuracy(net(*lying).softmax(1), truth)
        auroc = sp.metrics.auroc(honest.conflict, said.conflict)
        blamed = (said.blame.argmax(1) == place).float().mean()
        print(f"{name} lies: accuracy {right:.2f}, AUROC of the conflict {auroc:.2f}, right one blamed {blamed:.0%}")


if __name__ == "__main__":
    main()
