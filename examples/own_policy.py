"""A policy of your own: a small convolutional network, whose channels the instruction scales.

`forward` returns the losses [m, H] of demonstrated actions [m, H, a], and without them the actions themselves.
"""

import torch
from torch import nn


class Policy(nn.Module):
    image_size = 42  # pixels of a side of each image

    def __init__(self, *, state, action, chunk, views, vocabulary):
        super().__init__()
        self.chunk, self.action = chunk, action
        self.words = nn.EmbeddingBag(vocabulary, 64)
        self.see = nn.Sequential(nn.Conv2d(3 * views, 32, 5, 2), nn.ReLU(), nn.Conv2d(32, 64, 3, 2), nn.ReLU())
        self.scale = nn.Linear(64, 64)
        self.decide = nn.Sequential(
            nn.Conv2d(64, 16, 1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 9 * 9, 256), nn.ReLU(), nn.Linear(256, 64)
        )
        self.act = nn.Sequential(nn.Linear(64 + state, 128), nn.ReLU(), nn.Linear(128, chunk * action))

    def forward(self, seen, actions=None):
        told = self.words(seen.tokens)
        features = self.see(seen.images.flatten(1, 2)) * self.scale(told)[:, :, None, None]
        chunk = self.act(torch.cat([self.decide(features), seen.state], 1)).unflatten(1, (self.chunk, self.action))
        return chunk if actions is None else (chunk - actions).abs().mean(-1)
