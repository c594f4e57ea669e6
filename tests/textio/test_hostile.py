"""Small texts that once took a reader down, each with its relatives: answered at once, in one line."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import blinksim as bs
from blinksim.errors import BlinksimError, FileError, InputError, one_line, unknown
from blinksim.formats import machine_yaml
from blinksim.nccl import tests_log
from blinksim.nccl.files import topo_file
from blinksim.textio import safe_xml, strict_json
from blinksim.units import parse_exact, parse_rate, parse_size

SECONDS = 2.0
"""CPU seconds that no refusal below may take; each took minutes, or gigabytes, or ended in a traceback."""


def refused(path: Path, text: str, question: bs.Question | None = None) -> str:
    """What `verify_file` says about a file that it does not call right."""
    path.write_text(text, encoding="utf-8")
    start = time.process_time()
    try:
        found = bs.verify_file(path, question)
    except BlinksimError as error:
        said = str(error)
    else:
        assert not found.ok
        said = " ".join(found.reasons)
    assert time.process_time() - start < SECONDS
    assert "\n" not in said
    return said


@pytest.mark.parametrize("filler", ["<!---->", "<!-- a -->\n", "<?a?>", "<?a b>", " ", "<!--", "<?"])
def test_what_stands_before_the_outermost_element_is_read_once(tmp_path: Path, filler: str) -> None:
    text = filler * 20_000 + "<1"
    start = time.process_time()
    assert safe_xml.outermost(text) == ""
    assert time.process_time() - start < SECONDS
    refused(tmp_path / "x.xml", text, bs.Question("dgx1-v100"))


def test_the_outermost_element_is_found_behind_everything_that_may_stand_there() -> None:
    assert safe_xml.outermost('\ufeff<?xml version="1.0"?>\n<!-- <algo> -->\n<graphs version="1">') == "graphs"
    assert [safe_xml.outermost(text) for text in ("", "x", "<!-- <a> ", "<!-- -- --> <a/>")] == ["", "", "", "a"]


def test_a_key_given_twice_among_many_is_found_at_once() -> None:
    keys = [f"k{number}" for number in range(60_000)]
    text = "{" + ",".join(f'"{key}":0' for key in [*keys, keys[-1]]) + "}"
    start = time.process_time()
    with pytest.raises(FileError, match="'k59999' twice"):
        strict_json.parse("f.json", text.encode())
    assert time.process_time() - start < SECONDS


@pytest.mark.parametrize("inside", ["[" * 65 + "]" * 65, '{"a":' * 65 + "1" + "}" * 65, "[" * 100_000])
def test_json_has_a_depth(inside: str) -> None:
    with pytest.raises(FileError, match="nested"):
        strict_json.parse("f.json", inside.encode())
    assert strict_json.parse("f.json", ("[" * 64 + "]" * 64).encode())


def algo(gpus: int, chunks: int, steps: str = "") -> str:
    """An MSCCL file of `gpus` GPUs; the first one's only thread block carries `steps` out."""
    block = f'<tb id="0" send="-1" recv="-1" chan="0">{steps}</tb>'
    inside = "".join(
        f'<gpu id="{gpu}" i_chunks="{chunks}" o_chunks="1" s_chunks="0">{"" if gpu else block}</gpu>'
        for gpu in range(gpus)
    )
    return (
        f'<algo name="x" proto="Simple" coll="allgather" nchannels="1" nchunksperloop="{gpus}" ngpus="{gpus}" '
        f'inplace="0" outofplace="1" minBytes="0" maxBytes="1">{inside}</algo>'
    )


def test_an_msccl_file_cannot_ask_for_gigabytes(tmp_path: Path) -> None:
    assert "more data than can be followed" in refused(tmp_path / "x.xml", algo(64, 2**20))
    assert "wrong" in refused(tmp_path / "y.xml", algo(2, 2))


def test_contributions_that_double_are_counted_and_not_listed(tmp_path: Path) -> None:
    step = (
        '<step s="{}" type="re" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>'
    )
    last = (
        '<step s="255" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>'
    )
    said = refused(tmp_path / "x.xml", algo(1, 1, "".join(step.format(number) for number in range(255)) + last))
    assert "too much" in said


def plan(**changes: object) -> str:
    head = {"name": "x", "collective": "allgather", "protocol": "Simple", "inplace": False, "gpus": []}
    return json.dumps(head | changes)


def test_a_plan_needs_gpus_and_channels_with_two_ends(tmp_path: Path) -> None:
    assert "lists 0 GPUs" in refused(tmp_path / "x.json", plan())
    gpu = {"input_chunks": 1, "output_chunks": 2, "scratch_chunks": 0, "threadblocks": []}
    many = [{"channel_type": "memory", "connected_to": [1] * 30_000}]
    gpus = [gpu | {"id": 0, "channels": many}, gpu | {"id": 1, "channels": []}]
    assert "channel 0 to 1 has no other end" in refused(tmp_path / "y.json", plan(gpus=gpus))
    large = [gpu | {"id": rank, "channels": [], "input_chunks": 2**20} for rank in range(8)]
    assert "more data than can be followed" in refused(tmp_path / "z.json", plan(gpus=large))


@pytest.mark.parametrize(
    "change",
    [
        {"route_start": [0, 2**31 - 1, -(2**31), -1, 1]},
        {"route_start": [0, 0]},
        {"step": [2**31 - 1, -(2**31)] + [0] * 46},
        {"origin": [2**31 - 1] * 8},
        {"target": [2**31 - 1] * 8},
        {"origin": [-(2**31)] * 8},
        {"channel": [-(2**31)] * 56},
    ],
    ids=lambda change: next(iter(change)),
)
def test_numbers_at_the_edge_of_32_bits_do_not_wrap(tmp_path: Path, change: dict[str, list[int]]) -> None:
    path = tmp_path / "s.json"
    bs.write(bs.synthesize("dgx1-v100", "allgather", "ring").schedule, path)
    document = json.loads(path.read_text())
    for key, values in change.items():
        document[key] = (values * len(document[key]))[: len(document[key])] if key != "route_start" else values
    refused(tmp_path / "t.json", json.dumps(document))


@pytest.mark.parametrize("claim", ["x", "1/0", "1e99999999999", "9" * 399, 5, [], "٣"])
def test_a_claim_that_is_no_fraction_is_refused_by_all_who_use_it(claim: object) -> None:
    schedule = bs.synthesize("dgx1-v100", "allgather", "ring").schedule
    odd = schedule.with_bound({**schedule.bound, "rate_exact": claim})
    with pytest.raises(InputError, match="rate_exact"):
        bs.simulate(odd, "1MiB")


@pytest.mark.parametrize(
    "number", ["0e400", "0e999", "1e309", "0.0e-999", "1e400", "٣", "1_0", "nan", "inf", "9" * 400]
)
def test_numbers_of_a_log_have_a_size(tmp_path: Path, number: str) -> None:
    heading = "#  size count type redop root time algbw busbw #wrong"
    path = tmp_path / "log.txt"
    path.write_text(f"{heading}\n  8 2 float sum -1 {number} 0.00 0.00 0\n", encoding="utf-8")
    with pytest.raises(FileError, match=r"log\.txt:2"):
        tests_log.read(path)


@pytest.mark.parametrize("text", ["٣MiB", "３MiB", "1_0MiB", "²MiB"])
def test_sizes_are_written_in_ascii_digits(text: str) -> None:
    for parse in (parse_size, lambda t: parse_rate(t.replace("MiB", "GB/s"))):
        with pytest.raises(InputError):
            parse(text)


def test_exact_numbers_fit_into_a_float() -> None:
    for text in ("9" * 399, f"-{'9' * 200}", f"{'9' * 200}/3"):
        with pytest.raises(InputError):
            parse_exact(text)
    assert float(parse_exact("9" * 100)) < 1e101


@pytest.mark.parametrize("number", ["1.0e+999", "-1.5e+400"])
def test_a_number_that_no_float_holds_is_refused(number: str) -> None:
    text = (
        f"name: box\ndevices: [{{name: gpu0, kind: gpu, attributes: {{a: {number}}}}}, {{name: gpu1, kind: gpu}}]\n"
        "link_classes: {nvlink: {bandwidth: 25GB/s, latency: 1us, overhead: 0us, source: x}}\n"
        "links: [{between: [gpu0, gpu1], class: nvlink}]\n"
    )
    with pytest.raises(FileError, match=r"box\.yaml:2:"):
        machine_yaml.read_text(text, "box.yaml")


def test_empty_attributes_of_xml_can_be_written_as_yaml() -> None:
    text = (
        '<system version="1"><cpu numaid="0" affinity="" arch="x86_64" vendor=" " familyid="6" modelid="85">'
        '<pci busid="0000:01:00.0" class="0x030200" vendor="" link_speed="" link_width="0"><gpu dev="0" sm="70"/></pci>'
        '<pci busid="0000:02:00.0" class="0x030200"><gpu dev="1" sm="70"/></pci></cpu></system>'
    )
    machine = topo_file.read_text(text, "t.xml")
    again = machine_yaml.read_text(machine_yaml.write(machine), "t.yaml")
    assert again.devices == machine.devices


def test_control_characters_of_a_file_are_written_out_in_messages() -> None:
    assert one_line("a\x1b[31mb\r\n\u202ec\x9b\ud800é") == "a\\x1b[31mb\\r\\n\\u202ec\\x9b\\ud800é"
    error = FileError("x\x1b]0;y\x07.yaml", "line\nline", 3)
    assert str(error) == "x\\x1b]0;y\\x07.yaml:3: line\\nline"
    assert str(InputError("\x1b")) == str(FileError("f", "\x1b")).removeprefix("f: ") == "\\x1b"


def test_names_like_it_are_looked_for_among_few() -> None:
    names = [f"device{number}" for number in range(100_000)]
    start = time.process_time()
    said = str(unknown("device", "devise7" * 10_000, names))
    assert time.process_time() - start < SECONDS
    assert len(said) < 500
    assert "did you mean 'device7'" in str(unknown("device", "devic7", names[:100]))


def test_text_in_utf_16_is_named(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_bytes("GPU0".encode("utf-16"))
    with pytest.raises(FileError, match="UTF-16"):
        bs.load(path)


def test_a_long_line_that_is_no_yaml_is_refused_at_once(tmp_path: Path) -> None:
    """Steps that would be quadratic in its length take no time: a million characters in less than a second of CPU."""
    file = tmp_path / "m.yaml"
    file.write_text("name: x\nlinks: " + "x" * 10**6 + ": [1\n")
    begin = time.process_time()
    with pytest.raises(FileError):
        machine_yaml.read(file)
    assert time.process_time() - begin < 5
