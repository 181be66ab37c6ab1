r"""One two-layer network, one digest, a library of algorithms by prompts alone.

thm:attn_sim_stats_methods: for a finite collection of algorithms that one attention layer can run
in context there is one two-layer network with fixed weights that runs each of them from a prompt.
:class:`PromptLibrary` is that network, an :class:`~iceform.paper.AttentionHead` in row form
(thm:attn_sim_attn). An algorithm writes its data as tokens and itself as a head, and the network
runs that head. What the printed proof leaves out, and what is done here (errata, sections 5 to 7):

* Not only the number of grid points but their *range* must be common, or products beyond it
  saturate in silence. The network is sized by the largest of every bound (:class:`HeadSizes`), and
  refuses whatever exceeds one, by name.
* Zero tokens that fill a prompt up are keys of logit 0 and would take part in the softmax. They
  are masked by a margin M that outweighs every logit of the class: split evenly between key and
  query, since products of its square root are what the range must hold.
* Kernels need :math:`\|x_i\|^2` as a feature: no bilinear logit holds it.

The paper's algorithms are here: gradient descent for every loss (:class:`DescentPrompts`), ridge
regression and least squares (:class:`RidgePrompts`), Nadaraya and Watson's kernel regression
(:class:`KernelPrompts`), principal components (:class:`ComponentPrompts`), a Hopfield memory
(:class:`HopfieldPrompts`) and any given head (:class:`HeadPrompts`). A subclass of
:class:`PromptAlgorithm` adds one.

>>> import torch
>>> from iceform.paper import library
>>> X = torch.tensor([[1.0, 0.5], [-0.5, 1.0], [0.25, -1.0]], dtype=torch.float64)
>>> y = X @ torch.tensor([0.5, -0.25], dtype=torch.float64)
>>> ridge, kernel = library.RidgePrompts(alpha=1.0), library.KernelPrompts(gamma=2.0)
>>> network = library.PromptLibrary(dim=2, samples=3, algorithms=[ridge, kernel])
>>> for algorithm in (ridge, kernel):
...     result = network.run(algorithm, X, y)
...     assert result.digest == network.digest and result.certificate.error < 1e-6
"""

from iceform.paper.library.averages import HeadPrompts, HopfieldPrompts, KernelPrompts
from iceform.paper.library.components import ComponentPrompts
from iceform.paper.library.descent import DescentPrompts, RidgePrompts
from iceform.paper.library.network import PromptLibrary, standard_algorithms
from iceform.paper.library.passes import HeadSizes, PassRecorder, PromptAlgorithm, TargetHead

__all__ = [
    "ComponentPrompts",
    "DescentPrompts",
    "HeadPrompts",
    "HeadSizes",
    "HopfieldPrompts",
    "KernelPrompts",
    "PassRecorder",
    "PromptAlgorithm",
    "PromptLibrary",
    "RidgePrompts",
    "TargetHead",
    "standard_algorithms",
]
