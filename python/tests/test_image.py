# SPDX-License-Identifier: MIT OR Apache-2.0
"""The golden image of layout v1, which Rust, C and C++ read, too."""

import pathlib
import sys

import numpy as np
import overhear
import pytest

IMAGE = pathlib.Path(__file__).parents[2] / "crates/overhear-stream/tests/golden/simple-v1.bin"
FIELDS = np.dtype([("number", "u4"), ("square", "u4"), ("negative", "i4")])


@pytest.fixture
def image():
    if sys.byteorder != "little":
        pytest.skip("the image is little-endian, this machine is not")
    return IMAGE.read_bytes()


def test_golden_image_is_read(image):
    elements, missed = overhear.read_image(image, FIELDS, capacity=8, clock="x86_tsc", stream=7)
    p = np.arange(4, 11)
    assert missed == 4
    assert (elements["sequence"] == p).all()
    assert (elements["stamp_ticks"] == 1_000_000 + 250 * p).all()
    assert (elements["number"] == p).all()
    assert (elements["square"] == p * p).all()
    assert (elements["negative"] == -p).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capacity": 16}, "the image has"),
        ({"capacity": 4}, "capacity"),
        ({"stream": 8}, "stream id"),
        ({"clock": "monotonic"}, "clock"),
        ({"clock": "sundial"}, "no clock `sundial`"),
    ],
)
def test_contradicting_header_is_named(image, change, message):
    settings = {"capacity": 8, "clock": "x86_tsc", "stream": 7, **change}
    with pytest.raises(overhear.TraceError, match=message):
        overhear.read_image(image, FIELDS, **settings)


def test_memory_that_is_no_stream_is_refused():
    with pytest.raises(overhear.TraceError):
        overhear.read_image(bytes(10_000), FIELDS, capacity=8, clock="x86_tsc", stream=7)
