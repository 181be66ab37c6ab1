"""``python -m tests.claims``: the ledger, a line for every number; ``--unbound`` those without.

``--write`` puts the blocks of kept files into their pages; ``--lock`` keeps the words around
numbers whose sources also have their neighbours, and lets go of lost ones.
"""

import sys
from pathlib import Path

sys.path += map(str, Path(__file__).parents[2].glob("packages/*"))  # their tests have sources too

from tests.claims.check import claims, loose, lost, unbound, words_around
from tests.claims.scan import ROOT, pages
from tests.claims.sources import locked
from tests.claims.written import BLOCKS

if "--lock" in sys.argv:
    path = ROOT / "tests" / "claims" / "locked.txt"
    texts = pages()
    gone = set(lost())
    lines = [f"{page}\t{words}" for page, words in locked() if (page, words) not in gone]
    for page, text in texts.items():
        lines += [f"{page}\t{words_around(c.number, text)}" for c in loose(page, text)]
    path.write_text("\n".join(sorted(set(lines))) + "\n", encoding="utf-8")
    sys.exit()
if "--write" in sys.argv:
    for one in BLOCKS:
        one.write()
    sys.exit()
if "--unbound" in sys.argv:
    found = unbound()
    texts = pages()
    for claim in found:
        line = texts[claim.number.page].splitlines()[claim.number.line - 1].strip()
        print(f"{claim.number.page}:{claim.number.line}: {claim.number.text} | {line[:120]}")
    sys.exit(bool(found))
for page, text in pages().items():
    for claim in claims(page, text):
        print(claim)
