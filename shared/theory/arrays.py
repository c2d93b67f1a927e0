"""One formula, written for float64 tensors, for torch tensors, numpy arrays and numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = Tensor | np.ndarray


def for_arrays(prepare: Callable[[Tensor, str], Tensor]) -> Callable[[Callable[..., Tensor]], Callable[..., Any]]:
    """A decorator: the formula takes any real tensor, array or number as its first argument and answers in kind.

    `prepare(values, name)` checks the values, a tensor of their own dtype, and widens them for the formula `name`. A
    floating result of floating values is rounded once to their dtype; integers and booleans keep the formula's. Raises
    ValueError for values that are no real numbers.
    """

    def decorate(formula: Callable[..., Tensor]) -> Callable[..., Any]:
        @wraps(formula)
        def on_any(values: Any, *args: Any, **options: Any) -> Any:
            given = as_real_tensor(values, formula.__name__)
            result = formula(prepare(given, formula.__name__), *args, **options)
            if given.is_floating_point() and result.is_floating_point():
                result = result.to(given.dtype)
            return result if isinstance(values, Tensor) else result.numpy()[()]

        return on_any

    return decorate


def as_real_tensor(values: Any, name: str) -> Tensor:
    """Values as a tensor of their own dtype; ValueError, which names the formula `name`, for no real numbers."""
    try:
        given = values if isinstance(values, Tensor) else torch.from_numpy(_native(np.array(values, order="C")))
    except TypeError as error:
        raise ValueError(f"{name} needs real numbers ({error})") from error
    if given.is_complex():
        raise ValueError(f"{name} needs real numbers, got {given.dtype}")
    return given


def _native(values: np.ndarray) -> np.ndarray:
    """The array in this machine's byte order, extended precision as float64: what torch can hold."""
    if values.dtype.kind == "f" and values.dtype.itemsize > 8:
        return values.astype(np.float64)
    return values.astype(values.dtype.newbyteorder("="), copy=False)
