"""ONNX files of the machine that streams."""

import pytest
import torch

pytest.importorskip("onnxruntime", reason="needs iceform[export]")

from iceform.export import onnx
from iceform.export.onnx_file import PromptRunner
from iceform_estimators import Machine
from tests.export.test_onnx import check_zeros


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_file_of_zeros_is_no_file_of_look_ups(tmp_path, dtype):
    machine = Machine(dim=2, layout="stream", dtype=dtype)
    check_zeros(PromptRunner(machine.network), onnx(machine, tmp_path / "right.onnx"))
