"""The packed candidates of a report page, read back as the page reads them."""

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def columns(rows: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Every column of `content(run)["rows"]` by name."""
    content = zlib.decompress(base64.b64decode(rows["text"]))
    count, at, found = rows["count"], 0, dict[str, list[Any]]()
    for column in rows["columns"]:
        if column["kind"] == "same":
            found[column["name"]] = [column["value"]] * count
            continue
        distinct = column.get("distinct", 0)
        values: Any = column.get("values")
        if distinct:
            values = planes(content[at : at + 4 * distinct], "<f4")
            at += 4 * distinct
        width = column["width"]
        own = planes(content[at : at + width * count], "<f4" if values is None else f"<u{width}").tolist()
        at += width * count
        found[column["name"]] = own if values is None else [values[code] for code in own]
    assert at == len(content)
    return found


def planes(content: bytes, kind: str) -> NDArray[Any]:
    """Numbers from their bytes plane by plane."""
    width = np.dtype(kind).itemsize
    return np.ascontiguousarray(np.frombuffer(content, np.uint8).reshape(width, -1).T).view(kind).ravel()


def labels(rows: Mapping[str, Any]) -> list[str]:
    """The short name of every candidate, from the tables of words."""
    found = columns(rows)
    values = {column["name"]: column.get("values") for column in rows["columns"]}
    codes = {
        name: [values[name].index(value) for value in found[name]] for part in rows["labels"] for name in part["reads"]
    }
    words = [
        [part["words"].get(",".join(str(codes[name][i]) for name in part["reads"]), "") for part in rows["labels"]]
        for i in range(rows["count"])
    ]
    return [" ".join(word for word in line if word) for line in words]
