"""Into other tools: folders in the layout of the Hugging Face Hub, ONNX, TransformerLens, nnsight.

Of the last three nothing is imported before it is called for: each part says which extra it needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from iceform import pretrained
from iceform.errors import ProgramError

__all__ = ["from_pretrained", "load", "nnsight", "onnx", "save_pretrained", "transformer_lens"]


def save_pretrained(thing: Any, path: str | Path) -> Path:
    """Write a network, machine, emulator, result, program or prompt into the folder ``path``.

    Raises
    ------
    ProgramError
        If it is none of these, or a program with a function of the user's own.

    Examples
    --------
    >>> step = ice.paper.GradientStep("squared", 0.5, dim=1, samples=2)
    >>> from_pretrained(save_pretrained(step, "step"))
    GradientStep(...)
    """
    return pretrained.write(thing, path)


def from_pretrained(path: str | Path, **options: Any) -> Any:
    """Read back what :func:`save_pretrained` wrote.

    Parameters
    ----------
    path
        The folder; nothing outside it is read.
    options
        ``f=`` for an emulator of the user's own function, whose bound is "claimed" without it.

    Raises
    ------
    IntegrityError
        If the weights are missing, or a file is truncated, altered or of another format.

    Examples
    --------
    >>> step = ice.paper.GradientStep("squared", 0.5, dim=1, samples=2)
    >>> from_pretrained(save_pretrained(step, "step")).digest == step.digest
    True
    """
    return pretrained.read(path, **options)


load = from_pretrained


def onnx(thing: Any, path: str | Path, *, example: Any = None) -> Path:
    """The frozen network of a machine or an emulator as an ONNX file whose input is the prompt.

    See :func:`iceform.export.onnx_file.onnx`. Of a network in context, the whole of it, with its
    own inputs, of which ``example`` is one: :func:`iceform.export.network_file.network_onnx`.

    Examples
    --------
    >>> step = ice.paper.GradientStep("squared", 0.5, dim=1, samples=2)
    >>> onnx(step, "step.onnx")  # doctest: +SKIP
    PosixPath('step.onnx')
    """
    from iceform.export.onnx_file import onnx as write
    from iceform.networks import InContext

    if not isinstance(thing, InContext):
        return write(thing, path)
    from iceform.export.network_file import network_onnx

    if example is None:
        raise ProgramError("a network in context is exported on an input: pass example=")
    return network_onnx(thing, path, example)


def transformer_lens(thing: Any) -> Any:
    """A TransformerLens model with hooks at every head: see :mod:`iceform.export.lens`.

    A folder of a stock model becomes the ``TransformerBridge`` of its checkpoint; an emulator, a
    frozen network or a network in context a ``HookedRootModule`` of the literal network.

    Examples
    --------
    The third step of a descent, found by its role and switched off:

    >>> model = ice.targets.write("gpt2", ice.targets.LinearDescent(2, 3), "descent")
    >>> head = next(head for layer, head in model.find("gradient") if layer == 2)
    >>> def off(z, hook):
    ...     z[:, :, head] = 0.0
    ...     return z
    >>> bridge = transformer_lens(model)  # doctest: +SKIP
    >>> bridge.run_with_hooks(  # doctest: +SKIP
    ...     model.prompt(X, y), fwd_hooks=[("blocks.2.attn.hook_z", off)]
    ... )
    """
    from iceform.export.lens import transformer_lens as hooked

    return hooked(thing)


def nnsight(thing: Any) -> Any:
    """An nnsight model of the same things as :func:`transformer_lens` takes.

    Examples
    --------
    >>> model = ice.targets.write("gpt2", ice.targets.LinearDescent(2, 3), "descent")
    >>> watched = nnsight(model)  # doctest: +SKIP
    >>> with watched.trace(inputs_embeds=model.prompt(X, y)):  # doctest: +SKIP
    ...     hidden = watched.output.last_hidden_state.save()
    """
    from iceform.export.lens import nnsight as wrapped

    return wrapped(thing)
