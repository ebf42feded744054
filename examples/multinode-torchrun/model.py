"""A small causal transformer over bytes, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import nn

CONFIG = {"model_type": "byte-lm", "width": 64, "layers": 2, "heads": 2, "length": 64}


class ByteModel(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, length: int, **_: object) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        length = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=ids.device)
        hidden = self.tokens(ids) + self.positions[:length]
        return self.head(self.blocks(hidden, mask=mask, is_causal=True))
