# What is wrong: the container may use a fifth of a core, but the training computes all the time.
# Run it:        docker run --cpus=0.2 IMAGE traceml run examples/diagnosis/cpu_limited.py
# TraceML says:  CPU LIMITED
# The fix:       raise the container's CPU limit, or use fewer threads and loader workers
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

for step in range(40):
    loss = model(torch.randn(1024, 256)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

print(f"last loss {loss.item():.3f}")
