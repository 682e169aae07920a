"""REINFORCE with episodes that grow: a step is an episode, so later steps do more work, no slower."""

import sys
import time

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
for episode in range(int(sys.argv[1])):
    log_probabilities = []
    for _ in range(5 + episode // 2):
        choice = torch.distributions.Categorical(logits=policy(torch.randn(4)))
        log_probabilities.append(choice.log_prob(choice.sample()))
        time.sleep(0.002)  # the environment
    optimizer.zero_grad()
    (-torch.stack(log_probabilities).sum()).backward()
    optimizer.step()
