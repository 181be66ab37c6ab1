"""Without a GPU, kernels run in Triton's interpreter, which is chosen when they are imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
