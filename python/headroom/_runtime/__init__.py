"""Tensors, ops, graphs, sessions, variables, functions and gradients over libheadroom_runtime. The public names are in the modules beside this package."""
