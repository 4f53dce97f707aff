"""The names of TensorFlow 1: graphs, placeholders, sessions and variables in scopes. Outside of all graphs they use the default graph. Every name of headroom is
here too."""
from .. import _LAZY
from .._runtime.allocator import Allocator
from .._runtime.context import disable_eager_execution, enable_eager_execution, executing_eagerly
from .._runtime.graph import Graph, get_default_graph, placeholder, reset_default_graph
from .._runtime.ops import random_normal, random_uniform, set_seed as set_random_seed
from .._runtime.session import InteractiveSession, RunMetadata, RunOptions, Session, default_session as get_default_session
from .._runtime.tape import gradients
from .._runtime.variable import (AUTO_REUSE, get_variable, get_variable_scope, global_variables, global_variables_initializer, trainable_variables,
                                 variable_scope)

__all__ = ["AUTO_REUSE", "Allocator", "Graph", "InteractiveSession", "RunMetadata", "RunOptions", "Session", "disable_eager_execution", "disable_v2_behavior",
           "enable_eager_execution", "executing_eagerly", "get_default_graph", "get_default_session", "get_variable", "get_variable_scope", "global_variables",
           "global_variables_initializer", "gradients", "initialize_all_variables", "placeholder", "random_normal", "random_uniform", "reset_default_graph",
           "set_random_seed", "trainable_variables", "variable_scope"]

disable_v2_behavior = disable_eager_execution
initialize_all_variables = global_variables_initializer


def __getattr__(name):
    if name in _LAZY:
        import headroom
        return getattr(headroom, name)
    raise AttributeError(f"headroom.compat.v1 has no {name!r}")
