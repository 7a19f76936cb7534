"""The protocol users implement: what to train. Everything else is the job's YAML.

A recipe may be built in several processes and at any time, so every method is a pure function of the
arguments the recipe was made with (and of the generators, which are seeded before each call).
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.utils.data import Dataset, default_collate

from openclaw_tasks.config.recipe_file import no_such_class, no_such_module
from openclaw_tasks.errors import OpenClawError, RecipeError

if TYPE_CHECKING:
    from openclaw_tasks.config.job import TrainJob


class LossSum(NamedTuple):
    """What `Recipe.loss` returns.

    `loss`: a scalar tensor, *summed* over the items (`reduction="sum"`), not their mean: it is divided once,
    by the items of the whole global batch. `items`: how many that is (samples, tokens, pixels ...), an int.
    """

    loss: Tensor
    items: int


class Recipe(ABC):
    """What to train: subclass it, give the model, the dataset and the loss.

    The job's `recipe_args` arrive as keyword arguments of the subclass's own `__init__`; the base takes none.
    """

    def __init__(self, **recipe_args: Any) -> None:
        if recipe_args:
            known = _keywords_of(type(self))
            raise RecipeError(f"{type(self).__name__} {_unknown_keyword(next(iter(recipe_args)), known)}")

    @abstractmethod
    def model(self) -> nn.Module:
        """The model, freshly initialised, in the mode (train or eval) that its modules are trained in."""

    @abstractmethod
    def dataset(self) -> Dataset[Any]:
        """A map-style dataset; order and sharding are ours. May have `fingerprint() -> str | bytes`."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> LossSum:
        """The loss summed over the batch's items, and their number."""

    def optimizer(self, params: Sequence[nn.Parameter]) -> Optimizer:
        """The optimizer over `params`: the trainable parameters in order of their names, tied ones once."""
        fusable = all(param.is_floating_point() and param.device.type in ("cpu", "cuda") for param in params)
        return AdamW(params, lr=3e-4, fused=fusable)

    def schedule(self, applied: int) -> float:
        """The factor of every group's learning rate after `applied` updates; a pure function."""
        return 1.0

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Measures of a trained model. Must leave the model as it was."""
        return {}

    def collate(self, samples: list[Any]) -> Any:
        """Make one batch of a shard's samples."""
        return default_collate(samples)


@contextmanager
def user_code(doing: str, remedy: str) -> Iterator[None]:
    """Run the user's code; whatever it raises becomes a one-line `RecipeError` with the cause attached.

    Errors of ours pass as they are.
    """
    try:
        yield
    except OpenClawError:
        raise
    # The boundary to code that is not ours: nothing else knows what it may raise. A recipe that calls
    # sys.exit() while it is imported would otherwise end the process in silence.
    except (Exception, SystemExit) as error:
        raise RecipeError(f"{doing} raised {_one_line(error)}; {remedy}") from error


def load_recipe(job: TrainJob) -> Recipe:
    """Import and construct `job.recipe`, with the job file's folder appended to `sys.path`.

    Raises `RecipeError` naming what is wrong and the remedy: no such module or class, not a subclass of
    `Recipe`, methods missing, arguments refused, an exception of the user's code.
    """
    if job.folder is not None and job.folder not in sys.path:
        sys.path.append(job.folder)
    importlib.invalidate_caches()  # the file may be younger than the import system's view of its folder
    module_name, separator, class_name = job.recipe.partition(":")
    if not (separator and module_name and class_name):
        raise RecipeError(f"recipe={job.recipe!r} does not name a class; write it as module:Class")
    module = _import_module(module_name, job.folder)
    cls = _class_of(module, class_name)
    _check_arguments(cls, job.recipe_args)
    with user_code(f"{job.recipe}.__init__", f"check recipe_args={job.recipe_args}"):
        return cls(**job.recipe_args)


def _import_module(name: str, folder: str | None) -> ModuleType:
    try:
        with user_code(f"importing the recipe's module {name!r}", "mend it there"):
            return importlib.import_module(name)
    except RecipeError as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError) and missing.name is not None:
            if name == missing.name or name.startswith(f"{missing.name}."):
                raise no_such_module(name, folder) from missing
            raise RecipeError(
                f"recipe: module {name!r} imports {missing.name!r}, which is not there; install it"
            ) from missing
        raise


def _class_of(module: ModuleType, name: str) -> type[Recipe]:
    where = f"module {module.__name__!r} ({getattr(module, '__file__', None) or 'built in'})"
    found = getattr(module, name, None)
    if found is None:
        recipes = [key for key, value in vars(module).items() if _is_recipe(value)]
        hint = _nearest(name, recipes)
        if hint is None:
            hint = "another file may hide yours: rename the module, or define the class there"
        raise no_such_class(where, name, hint)
    if not _is_recipe(found):
        raise RecipeError(
            f"recipe: {name!r} of {where} is not a subclass of openclaw_tasks.Recipe; derive it: class {name}(Recipe)"
        )
    missing = sorted(found.__abstractmethods__)
    if missing:
        raise RecipeError(f"recipe: {name!r} of {where} lacks {', '.join(missing)}(); define them in the class")
    cls: type[Recipe] = found
    return cls


def _is_recipe(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Recipe) and value is not Recipe


def _check_arguments(cls: type[Recipe], recipe_args: dict[str, Any]) -> None:
    known = _keywords_of(cls)
    for key in recipe_args:
        if known is not None and key not in known:
            raise RecipeError(f"recipe_args: {cls.__name__} {_unknown_keyword(key, known)}")
    try:
        inspect.signature(cls).bind(**recipe_args)
    except TypeError as error:
        raise RecipeError(f"recipe_args: {cls.__name__} cannot be made of them: {error}; add it") from error


def _keywords_of(cls: type[Recipe]) -> list[str] | None:
    """Names that the constructor takes, through the `**kwargs` of subclasses; None if any name goes."""
    keywords: list[str] = []
    for ancestor in cls.__mro__:
        if "__init__" not in vars(ancestor):
            continue
        if ancestor is Recipe:
            return keywords
        parameters = list(inspect.signature(vars(ancestor)["__init__"]).parameters.values())[1:]
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        keywords += [parameter.name for parameter in parameters if parameter.kind in named]
        if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            return keywords
    return None


def _unknown_keyword(key: str, known: list[str] | None) -> str:
    nearest = _nearest(key, known or []) or "it takes none"
    return f"takes no argument {key!r}; {nearest}"


def _nearest(name: str, known: Sequence[str]) -> str | None:
    if not known:
        return None
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(sorted(known))}"


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
