"""Optimizers of the runtime. Their state is in variables of the session, which end with the variables that are updated."""
import ctypes

from .. import _library
from .._library import exception, library, runtime
from .._runtime import context, ops
from .._runtime.graph import Operation
from .._runtime.tape import GradientTape
from .._runtime.variable import Variable

__all__ = ["Adam", "Optimizer", "SGD"]

SGD_KIND, MOMENTUM_KIND, ADAM_KIND = range(3)    # hr_optimizer_kind


def _number(value, argument, example):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{argument} is {value!r}; give a number, such as {example}")
    return float(value)


class Optimizer:
    """Base class. `learning_rate` can be changed between steps; a function that was traced keeps the one that it was traced with."""

    def __init__(self, kind, name, **settings):
        self.name = context.name_for(name, self)
        self._kind = kind
        self._settings = settings
        self._sessions = set()    # in which it has state

    def __del__(self, free=runtime.hr_optimizer_free_state):
        for session in getattr(self, "_sessions", ()):
            if context.is_open(session) and not context._closed:
                try:
                    free(session, self.name.encode())
                except Exception:    # the session was destroyed by hr_shutdown
                    pass

    @property
    def learning_rate(self):
        """The size of steps."""
        return self._settings["learning_rate"]

    @learning_rate.setter
    def learning_rate(self, value):
        self._settings["learning_rate"] = _number(value, "learning_rate", 0.001)

    lr = learning_rate

    def apply_gradients(self, grads_and_vars, name=None):
        """Updates each variable by its gradient: pairs (gradient, variable)."""
        pairs = [tuple(each) for each in grads_and_vars]
        for each in pairs:
            if len(each) != 2 or not isinstance(each[1], Variable):
                raise TypeError(f"grads_and_vars contains {each!r}; give pairs of a gradient and a variable, such as zip(gradients, model.trainable_variables)")
        pairs = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        if not pairs:
            raise ValueError("grads_and_vars has no gradients; give zip(gradients, model.trainable_variables)")
        gradients = [ops.tensor_of(gradient, argument="a gradient") for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]
        graph = ops.place([*gradients, *variables])
        options = _library.struct("hr_optimizer", self._kind, name=self.name.encode(), **self._settings)

        def call(ids):
            handles = (ctypes.c_uint64 * len(variables))(*[each._id for each in variables])
            done = runtime.hr_apply_gradients(ctypes.byref(options), handles, (ctypes.c_uint64 * len(ids))(*ids), len(ids))
            if not done:
                raise exception(library.hr_last_status())
            return done

        self._sessions.update(each._owner for each in variables if each.graph is None)
        if graph is None:
            context.enter(variables[0]._owner)
            call([each._id for each in gradients])
            return Operation(0, None, name)
        with graph.building():
            done = call([graph.take(each) for each in gradients])
        if hasattr(graph, "changed"):
            graph.changed(done)
        return Operation(done, graph, name)

    def minimize(self, loss, var_list=None, tape=None):
        """Gradients of [loss] - a function without arguments, or a tensor with its tape or of a graph - and apply_gradients."""
        if callable(loss):
            with GradientTape() as tape:
                loss = loss()
        if var_list is None:
            from .._runtime.variable import trainable_variables
            var_list = trainable_variables()
        if tape is None:
            if ops.place([loss]) is None:
                raise ValueError("tape is missing; give the GradientTape that recorded the loss, or the loss as a function")
            tape = GradientTape()
            tape._in_graph = True
        return self.apply_gradients(zip(tape.gradient(loss, var_list), var_list))


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if it is not 0."""

    def __init__(self, learning_rate=0.01, momentum=0.0, name="sgd"):
        momentum = _number(momentum, "momentum", 0.9)
        super().__init__(MOMENTUM_KIND if momentum else SGD_KIND, name, learning_rate=_number(learning_rate, "learning_rate", 0.01), momentum=momentum)


class Adam(Optimizer):
    """Adam: steps by running means of gradients and of their squares."""

    def __init__(self, learning_rate=0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-7, name="adam"):
        super().__init__(ADAM_KIND, name, learning_rate=_number(learning_rate, "learning_rate", 0.001), beta1=_number(beta_1, "beta_1", 0.9),
                         beta2=_number(beta_2, "beta_2", 0.999), epsilon=_number(epsilon, "epsilon", 1e-7))
