"""Trains one step beside modules with names that a recorder might have taken."""

import json
import os
import sys

import recorder
import sitecustomize
import torch

assert recorder.NAME == "the user's recorder"
assert sitecustomize.NAME == "the user's sitecustomize"

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model(torch.ones(3, 4)).sum().backward()
optimizer.step()
print(json.dumps({"path": sys.path, "sitecustomize": os.environ.get("USER_SITECUSTOMIZE")}))
