"""Networks of vecrl: what is computed in another way on a GPU is the same."""

import pytest
import torch

from torchyard_trainers.core.device import as_on_gpu
from torchyard_trainers.vecrl.policy import Picture


@pytest.mark.parametrize("players", [1, 3])
@pytest.mark.parametrize("sides", [(20, 20), (7, 10), (3, 5)])
def test_a_picture_has_the_features_and_gradients_of_plain_convolutions_on_a_gpu(players, sides):
    torch.manual_seed(1)
    picture = Picture((4, *sides), players).double()
    seen = torch.rand(2, 3, 4 * sides[0] * sides[1] + 2, dtype=torch.float64, requires_grad=True)
    inputs = [seen, *picture.parameters()]
    plain = picture(seen)
    weights = torch.rand_like(plain)
    of_plain = torch.autograd.grad((plain * weights).sum(), inputs)
    with as_on_gpu(wanted=True):
        fast = picture(seen)
    torch.testing.assert_close(fast, plain, rtol=0, atol=1e-12)
    assert fast.shape == (2, 3, picture.features + 2)
    for found, expected in zip(torch.autograd.grad((fast * weights).sum(), inputs), of_plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
