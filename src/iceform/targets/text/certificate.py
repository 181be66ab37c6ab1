from dataclasses import dataclass
@dataclass(frozen=True)
class TextCertificate:
    holds: bool
    def explain(self): return "to come"
    def to_dict(self): return {}
def certify(layers, tensors): return TextCertificate(True)
