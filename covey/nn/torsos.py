"""The torsos of published recipes: SimBa, FlashSAC and XQC. A recipe names one, with the options that belong to it."""

import flax.linen as nn

from covey.nn.networks import ACTIVATIONS
from covey.nn.precision import dense
from covey.nn.regularise import BatchNorm
from covey.types import Array

EXPANSION = 4
"""Units inside a residual block, as a multiple of those outside."""


class Simba(nn.Module):
    """A residual network with layer normalisation (SimBa, Lee et al., 2025, arXiv 2410.09754).

    h = W x; for each block h += W' relu(W'' LN(h)); and LN(h) at the end. `hidden` has equal sizes, one for each block.
    """

    hidden: tuple[int, ...]
    activation: str = "relu"
    weights: str = "orthogonal"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = dense(self.hidden[0], self.weights)(x)
        for size in self.hidden:
            inner = ACTIVATIONS[self.activation](dense(EXPANSION * size, "he")(nn.LayerNorm()(x)))
            x = x + dense(size, "he")(inner)
        return nn.LayerNorm()(x)


class Flash(nn.Module):
    """A residual network with batch normalisation (FlashSAC, 2026, arXiv 2604.04539).

    h = W BN(x); for each block h += relu(BN(W' relu(BN(W'' h)))); and RMSNorm(h) at the end, with no biases but those
    of BN. `hidden` has equal sizes, one for each block. The recipe keeps the weights at unit norm (`unit_norm`).
    """

    hidden: tuple[int, ...]
    activation: str = "relu"
    weights: str = "orthogonal"
    batch_statistics = True

    @nn.compact
    def __call__(self, x: Array) -> Array:
        act = ACTIVATIONS[self.activation]
        x = dense(self.hidden[0], self.weights, bias=False)(BatchNorm(epsilon=1e-5)(x))
        for size in self.hidden:
            inner = act(BatchNorm(epsilon=1e-5)(dense(EXPANSION * size, self.weights, bias=False)(x)))
            x = x + act(BatchNorm(epsilon=1e-5)(dense(size, self.weights, bias=False)(inner)))
        return nn.RMSNorm(epsilon=1e-6)(x)


class XQC(nn.Module):
    """Dense layers with batch normalisation before each activation (XQC, Palenicek et al., 2026, arXiv 2509.25174).

    h = BN(x); for each layer h = relu(BN(W h)), with no biases but those of BN.
    """

    hidden: tuple[int, ...]
    activation: str = "relu"
    weights: str = "orthogonal"
    batch_statistics = True

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = BatchNorm()(x)
        for size in self.hidden:
            x = ACTIVATIONS[self.activation](BatchNorm()(dense(size, self.weights, bias=False)(x)))
        return x
