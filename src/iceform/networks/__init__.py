"""Run a torch network in context: its weights in prompts, two frozen layers to read them."""

from iceform.networks.frozen import FrozenLayers, NetworkSizes
from iceform.networks.network import InContext, in_context
from iceform.networks.pooling import MeanPooling
from iceform.networks.proven import InputEnclosure, RangeCertificate
from iceform.networks.report import Report, ReportRow

__all__ = [
    "FrozenLayers",
    "InContext",
    "InputEnclosure",
    "MeanPooling",
    "NetworkSizes",
    "RangeCertificate",
    "Report",
    "ReportRow",
    "in_context",
]
