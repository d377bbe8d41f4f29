"""IQ4_NL, for files and as a differentiable pretence in training.

llama.cpp's four-bit type with unequal steps: blocks of 32 along a row share a half-precision
scale. It takes 4.5 bits a weight like Q4_0, but llama.cpp has no AMX kernel for it, and the
AMX kernels of some builds fault on batches; a demo must not.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK = 32
LEVELS = torch.tensor(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113.0]
)
# All borders between levels are multiples of one half: a table in half steps finds the level.
_NEAREST = torch.bucketize((torch.arange(512) - 255.5) / 2, (LEVELS[1:] + LEVELS[:-1]) / 2)
_VALUES = LEVELS[_NEAREST]


def _scaled(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Scales (blocks, 1) float16, and each value's place in the tables, int32 (blocks, 32).

    The value that is largest by size becomes the level -127.
    """
    blocks = weight.reshape(-1, BLOCK)
    high = blocks.amax(1, keepdim=True)
    low = blocks.amin(1, keepdim=True)
    scale = (torch.where(high > -low, high, low) / -127).half()
    wide = scale.float()
    inverse = torch.where(wide == 0, wide, 2 / wide)
    # Half precision may lift the largest value a little above 127.
    return scale, (blocks * inverse).add_(256).clamp_(0, 511).int()


def iq4_nl(weight: Tensor) -> Tensor:
    """`weight` as llama.cpp reads it from an IQ4_NL tensor."""
    scale, places = _scaled(weight)
    values = _VALUES.index_select(0, places.view(-1)).view(places.shape)
    return (values * scale.float()).view_as(weight)


def fake_iq4_nl(weight: Tensor) -> Tensor:
    """The quantised value with the identity's gradient."""
    with torch.no_grad():
        difference = iq4_nl(weight) - weight
    return weight + difference


def packed_iq4_nl(weight: Tensor) -> NDArray[np.uint8]:
    """The tensor's bytes: per block the scale, then 16 bytes; (rows, columns / 32 * 18).

    Byte i holds value i in its low half and value i + 16 in its high half.
    """
    scale, places = _scaled(weight)
    quants = _NEAREST[places.long()].numpy().astype(np.uint8)
    halves = quants[:, :16] | (quants[:, 16:] << 4)
    blocks = np.concatenate((scale.numpy().view(np.uint8), halves), axis=1)
    return blocks.reshape(weight.shape[0], -1)
