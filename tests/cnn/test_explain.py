"""Looking at gates: what the maps say is what the gates do, for every gate."""

import pytest
import torch

from mha_apps.cnn.explain import gate_maps, plot_gates
from mha_apps.cnn.models import GatedCNN
from mha_apps.cnn.surgery import GATES

PLACE = "layer2.0.bn2"


@pytest.mark.parametrize("gate", GATES)
def test_maps_of_every_gate_are_what_it_does_and_are_drawn(gate):
    model = GatedCNN(model="resnet8", classes=["a", "b"], gate=gate, start="standard", image_size=(32, 32)).eval()
    seen = {}
    module = model.backbone.get_submodule(PLACE).attention_gate
    handle = module.register_forward_hook(lambda gate, given, result: seen.update(before=given[0], after=result))
    maps = gate_maps(model.backbone, torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    handle.remove()
    assert list(maps) == [row.path for row in model.gates]
    parts, before, after = maps[PLACE], seen["before"], seen["after"]
    assert not torch.equal(before, after)
    if gate == "cbam":
        factors = parts["channel"][:, :, None, None] * parts["spatial"][:, None]
        torch.testing.assert_close(after, before * factors)
    elif "spatial" in parts:
        torch.testing.assert_close(after.norm(dim=1), before.norm(dim=1) * parts["spatial"])
    else:
        torch.testing.assert_close(after.norm(dim=(2, 3)), before.norm(dim=(2, 3)) * parts["channel"])
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    titles = [axes.get_title() for axes in plot_gates(model, images).axes]
    assert any(title.startswith("gate of") for title in titles) == ("spatial" in parts)
    assert any(title.startswith("factors of the channels") for title in titles) == ("channel" in parts)
