"""TransformerLens and nnsight views of networks (needs ``iceform[interp]``).

A stock folder is opened as any checkpoint. Of a frozen network the whole path is inside: the
encoder that writes the prompt, every head, and the readout; what is hooked is the literal network,
so cached activations are those of ``trace()``.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from torch import nn

from iceform import pretrained
from iceform.errors import ProgramError
from iceform.export.inspectable import HookedNetwork
from iceform.networks import InContext
from iceform.targets import StockModel, StockProgram, network


def nnsight(thing: Any) -> Any:
    """An ``nnsight.NNsight`` model, traced with the thing's own inputs.

    Points are submodules, their ``.output`` is the activation. A stock folder is the model that
    transformers makes of it, so its modules have transformers' names.

    Parameters
    ----------
    thing
        A stock folder (its path, or what ``program.to`` or ``targets.write`` gave), an emulator, a
        frozen network, or a network in context.
    """
    try:
        from nnsight import NNsight  # type: ignore[import-untyped]
    except ImportError:
        raise ProgramError("nnsight is missing: pip install 'iceform[interp]'") from None
    thing = _opened(thing)
    if isinstance(thing, StockModel | StockProgram):
        return NNsight(network(_folder(thing)))
    return NNsight(thing.model if isinstance(thing, InContext) else HookedNetwork(thing))


def _opened(thing: Any) -> Any:
    """What a path leads to; anything else as it is."""
    return pretrained.read(thing) if isinstance(thing, str | Path) else thing


def _folder(thing: StockModel | StockProgram) -> StockModel:
    return thing if isinstance(thing, StockModel) else thing.model


def _bridge(folder: StockModel) -> Any:
    """A stock folder as TransformerLens opens a checkpoint: the field's own names of hooks."""
    from transformer_lens.model_bridge import TransformerBridge

    name = folder.architecture.name
    if name == "albert":
        raise ProgramError(
            "TransformerLens has no adapter for an albert; write a gpt2, a bert or a llama, or use "
            "export.nnsight, which opens all"
        )
    return TransformerBridge.boot_transformers(str(folder.path), dtype=folder.spec.torch_dtype)


def transformer_lens(thing: Any) -> Any:
    """A TransformerLens model: ``run_with_cache``, ``run_with_hooks`` and hooks at every head.

    A stock folder becomes the ``TransformerBridge`` of its checkpoint. It takes what the folder's
    ``prompt`` gives; the head (layer, head) of its ``find`` is ``blocks.{layer}.attn.hook_z`` at
    ``[:, :, head]``, and its answer is in ``ln_final.hook_out``, to be read by the folder's
    ``read``. Everything else becomes a ``HookedRootModule`` that is called with the thing's own
    inputs and gives its own answer, by the literal network. Of a network in context every piece
    has a point: ``layers.0.linear1.hook_out``, ``layers.0.self_attn.heads.hook_pattern``.

    Parameters
    ----------
    thing
        A stock folder (its path, or what ``program.to`` or ``targets.write`` gave), an emulator, a
        frozen network, or a network in context.
    """
    try:
        from transformer_lens import ActivationCache, HookedRootModule
        from transformer_lens.hook_points import HookPoint
    except ImportError:
        raise ProgramError("transformer-lens is missing: pip install 'iceform[interp]'") from None
    thing = _opened(thing)
    if isinstance(thing, StockModel | StockProgram):
        return _bridge(_folder(thing))

    class Hooked(HookedRootModule):
        """What the two kinds of hooked modules share."""

        def run_with_cache(
            self, *inputs: Any, return_cache_object: bool = True, **options: Any
        ) -> tuple[Any, Any]:
            """The answer, and every activation on the way to it."""
            out, found = super().run_with_cache(*inputs, **options)
            if not return_cache_object:
                return out, found
            whole = not options.get("remove_batch_dim", False)
            return out, ActivationCache(found, self, has_batch_dim=whole)

    class HookedFrozen(HookedNetwork, Hooked):
        """A frozen network with hooks at every head."""

        def __init__(self) -> None:
            super().__init__(thing, HookPoint)
            self.setup()  # type: ignore[no-untyped-call]

    class HookedInContext(Hooked):
        """A network in context with a hook behind every piece."""

        def __init__(self) -> None:
            super().__init__()
            network = copy.deepcopy(thing)
            for part in list(network.model.modules()):
                for name, child in list(part.named_children()):
                    if name.startswith("hook_") and isinstance(child, nn.Identity):
                        setattr(part, name, HookPoint())  # type: ignore[no-untyped-call]
            self._network = (network,)  # in a tuple: its parts are registered below, by name
            for name, part in network.model.named_children():
                setattr(self, name, part)
            self.setup()  # type: ignore[no-untyped-call]

        def forward(self, *inputs: Any, **named: Any) -> Any:
            return self._network[0](*inputs, **named)

    return HookedInContext() if isinstance(thing, InContext) else HookedFrozen()
