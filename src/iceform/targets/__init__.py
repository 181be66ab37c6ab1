"""Stock transformers that run algorithms: folders that ``AutoModel.from_pretrained`` loads."""

from iceform.heads.design import unmirrored
from iceform.targets import text
from iceform.targets.ablation import Contribution, contribution
from iceform.targets.answering_descent import AnsweringDescent
from iceform.targets.architectures import ARCHITECTURES
from iceform.targets.causal_descent import CausalDescent, StochasticDescent
from iceform.targets.checking import Checked, attest, check, network
from iceform.targets.domain import DataDomain
from iceform.targets.folder import StockModel, load, write
from iceform.targets.general_descent import GeneralDescent
from iceform.targets.layered_program import LayeredProgram
from iceform.targets.linear_descent import LinearDescent
from iceform.targets.stock_computer import StockComputer
from iceform.targets.stock_program import StockDescent, StockProgram
from iceform.targets.target import Target

__all__ = [
    "ARCHITECTURES",
    "AnsweringDescent",
    "CausalDescent",
    "Checked",
    "Contribution",
    "DataDomain",
    "GeneralDescent",
    "LayeredProgram",
    "LinearDescent",
    "StochasticDescent",
    "StockComputer",
    "StockDescent",
    "StockModel",
    "StockProgram",
    "Target",
    "attest",
    "check",
    "contribution",
    "load",
    "network",
    "text",
    "unmirrored",
    "write",
]
