"""The codec of files: what it writes it reads, and it reads nothing else."""

import json
import math
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from iceform.codec import decode, encode
from iceform.errors import IntegrityError


@dataclass(frozen=True)
class Inner:
    at: float
    names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Outer:
    inner: Inner
    several: tuple[Inner, ...]
    pair: tuple[int, float]
    by_name: dict[str, float | str]
    dtype: torch.dtype
    values: Tensor
    maybe: Inner | None = None
    shifted: int = field(default=0, metadata={"codec": (lambda n: n + 1, lambda n: n - 1)})
    seen: str = field(default="never", metadata={"kept": False})
    _held: str = "nothing"


def outer(**changes):
    given = {
        "inner": Inner(math.inf, ("a", "b")),
        "several": (Inner(0.1), Inner(-0.0)),
        "pair": (3, 2.0**-1074),
        "by_name": {"x": 1.5, "y": "far"},
        "dtype": torch.float32,
        "values": torch.tensor([0.1, math.pi], dtype=torch.float64),
        "shifted": 7,
        "seen": "once",
        "_held": "a cache",
    }
    return Outer(**given | changes)


def through_json(said):
    return json.loads(json.dumps(said))


@pytest.mark.parametrize("apart", [False, True])
def test_what_is_written_is_read_to_the_bit(apart):
    thing, tensors = outer(maybe=Inner(2.0)), {}
    said = through_json(encode(thing, tensors if apart else None))
    assert ("values" in said) != apart
    assert tensors.keys() == ({"values"} if apart else set())
    again = decode(Outer, said, tensors)
    for name in ("inner", "several", "pair", "by_name", "dtype", "maybe", "shifted"):
        assert getattr(again, name) == getattr(thing, name), name
    assert again.values.equal(thing.values)
    assert math.copysign(1, again.several[1].at) == -1
    assert (again.seen, again._held) == ("never", "nothing")  # neither is in a file
    assert said["shifted"] == 8


@pytest.mark.parametrize(
    ("name", "said", "match"),
    [
        ("inner", {"at": "near"}, "inner.at is 'near', not a number"),
        ("inner", {"at": True}, "inner.at is True"),
        ("inner", {"at": 1.0, "to": 2.0}, "inner has no field 'to'"),
        ("inner", {}, "inner has no 'at'"),
        ("inner", 3.0, "inner is 3.0, not a Inner"),
        ("several", {"at": 1.0}, "several is dict"),
        ("several", [{"at": None}], "several.0.at is None"),
        ("pair", [1, 2.0, 3.0], "pair is list"),
        ("pair", [1.5, 2.0], r"pair.0 is 1.5, not a whole number"),
        ("by_name", {"x": [1]}, "by_name.x is list"),
        ("dtype", "float31", "dtype is None"),
        ("dtype", "nn", "not a dtype"),
        ("values", ["a"], "values is list, not a Tensor"),
        ("maybe", {"at": 1.0, "names": [2]}, "maybe is dict"),
    ],
)
def test_anything_else_is_refused_by_name(name, said, match):
    with pytest.raises(IntegrityError, match=match):
        decode(Outer, through_json(encode(outer())) | {name: said})


def test_what_earlier_versions_wrote_is_read():
    """Small things as lists, in the order of their fields, and fields that came later missing."""
    assert decode(Inner, [2, ["a"]]) == Inner(2.0, ("a",))
    assert decode(Inner, {"at": 2}) == Inner(2.0)
    with pytest.raises(IntegrityError):
        decode(Inner, [1.0, ["a"], "more"])


def test_what_no_file_holds_is_not_written():
    with pytest.raises(TypeError, match="files hold no function"):
        encode(outer(by_name={"f": outer}))
