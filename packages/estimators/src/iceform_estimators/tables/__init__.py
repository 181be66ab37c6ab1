"""Tables of data as numbers: CSV or Parquet in, a matrix out, and a report of what was done.

:func:`read` gives every column a type; :class:`Preparation` learns from the training rows alone how
numbers are filled and scaled and which levels a text column has, and turns any rows with the same
columns into a matrix. What is left out or filled in is said, never done in silence. Needs
``iceform-estimators``.
"""

from iceform_estimators.tables.columns import ames, table_from
from iceform_estimators.tables.preparation import Preparation
from iceform_estimators.tables.reading import columns_of, inspect, read, read_like, write_rows
from iceform_estimators.tables.schema import Column, Schema, read_schema
from iceform_estimators.tables.table import Table
from iceform_estimators.tables.treatments import (
    MISSING,
    Category,
    LeftOut,
    Number,
    Treatment,
    Unknown,
)
from iceform_estimators.tables.words import near

__all__ = [
    "MISSING",
    "Category",
    "Column",
    "LeftOut",
    "Number",
    "Preparation",
    "Schema",
    "Table",
    "Treatment",
    "Unknown",
    "ames",
    "columns_of",
    "inspect",
    "near",
    "read",
    "read_like",
    "read_schema",
    "table_from",
    "write_rows",
]
