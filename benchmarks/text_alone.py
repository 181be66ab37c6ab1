"""Texts on a saved folder, where iceform cannot be imported: torch and transformers only.

``python benchmarks/text_alone.py folder asked.json found.json``

``asked.json`` is a list of ``{"name", "text", "run", "greedy"}``: a prompt, and the words that
should follow it. The network reads prompt and run in one pass (teacher forcing), and at every
position that it would have generated the highest score must be the next word of the run. That is
what ``generate()`` would write: its first word is the argmax after the prompt; if all words so far
are the run's, so is the argmax that comes next. Texts marked ``greedy`` are generated too.
``found.json`` gets one row a text, written after each.
"""

import hashlib
import json
import sys
import time
from pathlib import Path


class Blocked:
    """An import of iceform fails, wherever it is installed."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Refuse one name."""
        if name.split(".")[0] == "iceform":
            raise ImportError("iceform is not here")


def main(folder: str, asked: str, found: str) -> None:
    """Read texts, run them, write what was found."""
    sys.meta_path.insert(0, Blocked)  # type: ignore[arg-type]
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    weights = (Path(folder) / "model.safetensors").read_bytes()
    rows: list[dict[str, object]] = []
    head = {
        "file_sha256": hashlib.sha256(weights).hexdigest(), "torch": torch.__version__,
        "transformers": transformers.__version__, "dtype": str(network.dtype),
        "class": type(network).__name__, "iceform": "iceform" in sys.modules,
    }  # fmt: skip
    for item in json.loads(Path(asked).read_text()):
        prompt = tokenizer(item["text"]).input_ids
        wanted = tokenizer.convert_tokens_to_ids(item["run"])
        began = time.process_time()
        with torch.no_grad():
            row = torch.tensor([prompt + wanted])
            states = network.base_model(row, use_cache=False).last_hidden_state[0]
            wrong, lead = 0, float("inf")
            for start in range(0, len(wanted), 512):
                at = len(prompt) - 1 + start
                part = torch.tensor(wanted[start : start + 512])[:, None]
                logits = network.lm_head(states[at : at + len(part)])
                right = logits.gather(1, part)[:, 0]
                ahead = right - logits.scatter(1, part, -torch.inf).max(1).values
                wrong, lead = wrong + int((~(ahead > 0)).sum()), min(lead, float(ahead.min()))
        out = {
            "name": item["name"], "prompt": len(prompt), "tokens": len(wanted), "wrong": wrong,
            "least_lead": lead, "cpu_s": round(time.process_time() - began, 2),
        }  # fmt: skip
        if item["greedy"]:
            began = time.process_time()
            made = network.generate(
                row[:, : len(prompt)], attention_mask=torch.ones(1, len(prompt)).long(),
                max_length=min(row.shape[1] + 8, tokenizer.model_max_length),
            )  # fmt: skip
            out["greedy_equal"] = made[0, len(prompt) :].tolist() == wanted
            out["greedy_cpu_s"] = round(time.process_time() - began, 2)
        rows.append(out)
        print(out, flush=True)
        Path(found).write_text(json.dumps({**head, "rows": rows}, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
