"""Layers, models, losses and optimizers with the names of Keras, over the ops and optimizers of the runtime."""
from . import activations, initializers, layers, losses, models, optimizers
from .layers import Input
from .models import Model, Sequential

__all__ = ["Input", "Model", "Sequential", "activations", "initializers", "layers", "losses", "models", "optimizers"]
