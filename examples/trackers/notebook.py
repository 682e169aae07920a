# %% [markdown]
# # TraceML in a notebook
# Open this file in Jupyter (with jupytext) or VS Code, or copy the cells.

# %%
from tiny_training import train

import traceml

# %% A run with a name: the verdict and the page appear below this cell.
with traceml.run("baseline") as baseline:
    train(40, lambda step, loss: None)

# %% What was recorded, as arrays.
print(traceml.load(baseline.folder).steps["step_ms"].mean())

# %% Or: from now on, every cell that trains shows its result.
# %load_ext traceml
