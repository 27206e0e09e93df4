"""The one door to the driver API: every call's result is checked here."""

from __future__ import annotations

from typing import Any

from probes.core.types import Unavailable


def call(function: Any, *args: Any) -> Any:
    """Call a cuda.bindings driver function; returns its values (None, one, or a tuple).

    Raises Unavailable where the GPU is out of memory or cannot do what was asked, RuntimeError
    for any other failure: then a kernel or the harness is at fault, not the user.
    """
    from cuda.bindings import driver

    result, *values = function(*args)
    if result != driver.CUresult.CUDA_SUCCESS:
        name = driver.cuGetErrorName(result)[1]
        text = driver.cuGetErrorString(result)[1]
        message = f"{function.__name__}: {name.decode()} ({text.decode()})"
        if result == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise Unavailable(
                f"the GPU has no room left ({message}); free some, or try --quick or one --case"
            )
        if result == driver.CUresult.CUDA_ERROR_NOT_SUPPORTED:
            raise Unavailable(f"this GPU or driver cannot do that ({message})")
        raise RuntimeError(message)
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)
