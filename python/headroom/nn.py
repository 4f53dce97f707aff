"""Ops of networks: the names of tf.nn."""
from ._runtime.ops import (bias_add, causal_softmax, embedding_lookup, gelu, layer_normalization, log_softmax, relu, sigmoid, softmax,
                           softmax_cross_entropy_with_logits, sparse_softmax_cross_entropy_with_logits, tanh)

__all__ = ["bias_add", "causal_softmax", "embedding_lookup", "gelu", "layer_normalization", "log_softmax", "relu", "sigmoid", "softmax",
           "softmax_cross_entropy_with_logits", "sparse_softmax_cross_entropy_with_logits", "tanh"]
