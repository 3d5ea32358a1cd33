import torch
from models import make_batch


def validate(model, batches, device):
    """The mean loss of a model on batches that no rank trains on."""
    model.eval()
    total = 0.0
    with torch.no_grad():
        for index in range(batches):
            inputs, targets = make_batch(5000 + index, device)
            total += torch.nn.functional.mse_loss(model(inputs), targets).item()
    return total / batches
