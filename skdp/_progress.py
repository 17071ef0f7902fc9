"""Progress of a fit, told in public words: the releases that were paid for, one after the other.

scikit-learn 1.9 and later have callbacks; before that the same objects are driven from here.
Callbacks are handed the estimator and the task (a number and the name of a release), never X, y or
an exact answer, and they cannot stop a fit. How long a step takes is not protected.
"""

import sys
import uuid

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # scikit-learn before 1.9
    CallbackSupportMixin = with_callbacks = None


class PrintProgress:
    """Callback that prints the releases of a fit as they are paid for.

    It prints names and numbers of releases: public values, no times and no answers. Set it with
    ``estimator.set_callbacks(PrintProgress())``; it works with every version of scikit-learn.

    Parameters
    ----------
    verbose : int, default=1
        1 prints a line where the kind of release changes, 2 a line for every release.
    stream : file-like or None, default=None
        Where to print; None is standard output.

    Examples
    --------
    >>> import numpy as np
    >>> from skdp import DPPCA, PrintProgress
    >>> X = np.random.default_rng(0).standard_normal((1000, 4))
    >>> pca = DPPCA(1, clip_norm=3.0, center="none", svd_solver="power", iterated_power=1)
    >>> _ = pca.set_callbacks(PrintProgress()).fit(X)
    DPPCA: fit
    DPPCA: release 1, count
    DPPCA: release 2, size_rank
    DPPCA: release 9, tangent_product
    DPPCA: release 10, projected_gram
    DPPCA: release 11, trace
    DPPCA: done
    """

    def __init__(self, verbose=1, *, stream=None):
        self.verbose = verbose
        self.stream = stream
        self._last = None

    def setup(self, estimator, context):
        """Begin a fit."""
        self._last = None

    def on_fit_task_begin(self, estimator, context):
        """Print the name of a task."""
        if context.task_name == "fit":
            self._print(f"{context.estimator_name}: fit")
        elif self.verbose > 1 or context.task_name != self._last:
            number = context.task_id + 1
            self._print(f"{context.estimator_name}: release {number}, {context.task_name}")
        self._last = context.task_name

    def on_fit_task_end(self, estimator, context):
        """Print the end of the fit."""
        if context.task_name == "fit":
            self._print(f"{context.estimator_name}: done")

    def teardown(self, estimator, context):
        """End a fit."""

    def _print(self, line):
        stream = sys.stdout if self.stream is None else self.stream
        stream.write(line + "\n")


class ReleaseTasks:
    """The tasks of one fit: called with the name of each release when it is paid for."""

    def __init__(self, estimator, root):
        self._estimator = estimator
        self._root = root
        self._task = None
        root.call_on_fit_task_begin(estimator=estimator)

    def __call__(self, name):
        """End the task before, begin the next one."""
        self._end()
        self._task = self._root.subcontext(task_name=name)
        self._task.call_on_fit_task_begin(estimator=self._estimator)

    def _end(self):
        if self._task is not None:
            self._task.call_on_fit_task_end(estimator=self._estimator)
            self._task = None

    def close(self):
        """End the last task and the fit."""
        self._end()
        self._root.call_on_fit_task_end(estimator=self._estimator)


# -- before scikit-learn 1.9 -----------------------------------------------------------------------

_HOOKS = ("setup", "on_fit_task_begin", "on_fit_task_end", "teardown")


class _Task:
    """As much of scikit-learn's context as a progress bar looks at."""

    def __init__(self, estimator, name, number, parent=None):
        self.estimator_name = type(estimator).__name__
        self.task_name, self.task_id, self.parent = name, number, parent
        self.max_subtasks = None if parent is None else 0
        self.root_uuid = uuid.uuid4() if parent is None else parent.root_uuid
        self.source_estimator_name = self.source_task_name = None
        self._callbacks = estimator._skl_callbacks if parent is None else parent._callbacks
        self._estimator, self._children = estimator, 0

    def subcontext(self, task_name):
        self._children += 1
        return _Task(self._estimator, task_name, self._children - 1, self)

    def call_on_fit_task_begin(self, *, estimator):
        for callback in self._callbacks:
            callback.on_fit_task_begin(estimator, self)

    def call_on_fit_task_end(self, *, estimator):
        for callback in self._callbacks:
            callback.on_fit_task_end(estimator, self)


class OldCallbackSupport:
    """What scikit-learn 1.9 calls CallbackSupportMixin, for one estimator by itself."""

    def set_callbacks(self, *callbacks):
        """Set callbacks for the estimator.

        Parameters
        ----------
        *callbacks : callback instances
            Objects with the methods of scikit-learn's callbacks, such as `PrintProgress`.

        Returns
        -------
        self : estimator instance
            The estimator.
        """
        for callback in callbacks:
            if isinstance(callback, type) or not all(hasattr(callback, h) for h in _HOOKS):
                raise TypeError("callbacks must be instances following the FitCallback protocol.")
        if callbacks:
            self._skl_callbacks = list(callbacks)
        else:
            vars(self).pop("_skl_callbacks", None)
        return self

    def _init_callback_context(self, max_subtasks=None):
        self._callback_fit_ctx = context = _Task(self, "fit", 0)
        for callback in self._skl_callbacks:
            callback.setup(self, context)
        return context


def old_with_callbacks(method):
    """Tear callbacks down after a fit, whether it succeeds or not."""

    def managed(estimator, *args, **kwargs):
        try:
            return method(estimator, *args, **kwargs)
        finally:
            context = vars(estimator).pop("_callback_fit_ctx", None)
            for callback in estimator._skl_callbacks if context is not None else ():
                callback.teardown(estimator, context)

    return managed


CallbackMixin = CallbackSupportMixin or OldCallbackSupport


def run_with_callbacks(fit, estimator, args, kwargs):
    """Run a fit inside the life of its callbacks; without callbacks it is a plain call."""
    if not vars(estimator).get("_skl_callbacks"):
        return fit(estimator, *args, **kwargs)
    return (with_callbacks or old_with_callbacks)(fit)(estimator, *args, **kwargs)
