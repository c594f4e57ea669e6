"""XML from strangers: what is read, and that everything else ends in one `FileError` with its line."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given, settings, strategies as st

from blinksim.errors import FileError
from blinksim.textio import safe_xml
from blinksim.textio.safe_xml import Element, fault, integer, number, parse, word


def read(text: str, **limits: int) -> Element:
    return parse(text, "f.xml", root="a", **limits)


def test_elements_know_their_lines_and_columns() -> None:
    root = read('<?xml version="1.0"?>\n<!-- c -->\n<a x="1">\n  <b y="2"\n z="3"/>\n  <c/><b/>\n</a>\n')
    assert (root.tag, root.line, root.column, dict(root.attributes)) == ("a", 3, 1, {"x": "1"})
    assert [(e.tag, e.line, e.column) for e in root.children] == [("b", 4, 3), ("c", 6, 3), ("b", 6, 7)]
    assert [dict(e.attributes) for e in root.named("b")] == [{"y": "2", "z": "3"}, {}]


def test_elements_are_frozen() -> None:
    root = read('<a x="1"/>')
    with pytest.raises(TypeError):
        root.attributes["x"] = "2"  # type: ignore[index]
    with pytest.raises(AttributeError):
        root.tag = "b"  # type: ignore[misc]


def test_line_breaks_inside_values_are_blanks() -> None:
    assert read('<a x="6\n   "/>').attributes["x"] == "6    "
    assert word("f", read('<a x="8 GT/\n   s"/>'), "x") == "8GT/s"


def test_byte_order_mark_and_false_encodings_are_harmless() -> None:
    assert read('\ufeff<?xml version="1.0" encoding="UTF-16"?><a x="é"/>').attributes["x"] == "é"
    assert read('<?xml version="1.0" encoding="no-such-code"?><a/>').tag == "a"


BOMB = (
    "<!DOCTYPE a [<!ENTITY l 'lol'>"
    + "".join(f"<!ENTITY l{i} '{f'&l{i - 1};' * 10 if i else '&l;' * 10}'>" for i in range(9))
    + "]>\n<a>&l8;</a>"
)

HOSTILE = {
    "empty": ("", None, "is empty; expected an XML file with <a>"),
    "blanks": (" \n\t\n", None, "is empty"),
    "plain text": ("GPU0 GPU1\n", 1, "not well-formed XML (syntax error)"),
    "binary": ("\x7fELF\x02\x01\x00\x00", 1, "not well-formed XML"),
    "NUL inside": ("<a>\n<b x='\x00'/></a>", 2, "not well-formed XML"),
    "lone surrogate": ("<a x='\ud800'/>", None, "is not UTF-8 text"),
    "cut between elements": ("<a>\n<b>\n</b>\n", 4, "ends inside <a> of line 1; the file is cut short"),
    "cut inside a tag": ("<a>\n<b>\n<c x=", 3, "ends inside <b> of line 2; the file is cut short"),
    "only a comment": ("<!-- a -->\n", 2, "ends before <a> begins"),
    "wrong root": ("\n<html/>", 2, "the outermost element is <html>; this file must hold <a>"),
    "two roots": ("<a/>\n<a/>", 2, "not well-formed XML (junk after document element)"),
    "crossed tags": ("<a>\n<b></a></b>", 2, "not well-formed XML (mismatched tag)"),
    "attribute twice": ('<a>\n<b x="1" x="2"/></a>', 2, "not well-formed XML (duplicate attribute)"),
    "unknown entity": ("<a>\n<b x='&e;'/></a>", 2, "not well-formed XML (undefined entity)"),
    "text": ("<a>\n<b/>\nhello</a>", 3, "text 'hello' inside <a>"),
    "document type": ("<!DOCTYPE a>\n<a/>", 1, "a document type or entity declaration"),
    "outside entity": ('<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>', 1, "a document type or entity declaration"),
    "expanding entities": (BOMB, 1, "a document type or entity declaration"),
    "deep": ("<a>" * 100, 1, "nested more than 64 deep"),
    "many attributes": ("<a " + " ".join(f"x{i}='1'" for i in range(65)) + "/>", 1, "65 attributes; at most 64"),
    "long value": (f"<a>\n<b x='{'1' * 5000}'/></a>", 2, "attribute x of <b> is longer than 4096"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_text_gives_one_message_with_its_line(case: str) -> None:
    text, line, message = HOSTILE[case]
    with pytest.raises(FileError) as caught:
        read(text)
    said = str(caught.value)
    assert message in said
    assert said.startswith("f.xml:" if line is None else f"f.xml:{line}:")
    assert len(said) < 200
    assert "\n" not in said


def test_size_and_element_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(read("<a>" + "<b/>" * 9 + "</a>", max_elements=10).children) == 9
    with pytest.raises(FileError, match="more than 10 elements"):
        read("<a>" + "<b/>" * 10 + "</a>", max_elements=10)
    monkeypatch.setattr("blinksim.textio.safe_xml.MAX_BYTES", 11)
    assert read("<a x='é'/>").tag == "a"
    monkeypatch.setattr("blinksim.textio.safe_xml.MAX_BYTES", 10)
    with pytest.raises(FileError, match="more than 10 bytes"):
        read("<a x='é'/>")


def test_numbers_in_attributes() -> None:
    e = read('<a d="10" h="0x1F" m="-1" b=" 7\n " o="010" w="abc" u="1_0" f="2.5" x="1e400" n="nan" z="0" zz="00"/>')
    assert [integer("f", e, n, low=-1, high=99) for n in ("d", "h", "m", "b", "z")] == [10, 31, -1, 7, 0]
    assert integer("f", e, "missing", low=0, high=9, default=4) == 4
    assert number("f", e, "f", low=0, high=9) == 2.5
    for name in ("o", "w", "u", "f", "n", "zz"):
        with pytest.raises(FileError, match=rf"^f:1:1: <a>: {name}=.* is not a whole number$"):
            integer("f", e, name, low=0, high=99)
    with pytest.raises(FileError, match="d='10' must lie between 0 and 9"):
        integer("f", e, "d", low=0, high=9)
    with pytest.raises(FileError, match="attribute missing is missing"):
        integer("f", e, "missing", low=0, high=9)
    for name in ("x", "n", "w"):
        with pytest.raises(FileError, match="is not a number"):
            number("f", e, name, low=0, high=9)
    assert str(fault("f", e, "is odd")) == "f:1:1: <a>: is odd"


names = st.sampled_from(["a", "b", "c"])
values = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8)
Tree = tuple[str, dict[str, str], list["Tree"]]
trees: st.SearchStrategy[Tree] = st.recursive(
    st.builds(lambda t, x: (t, x, []), names, st.dictionaries(names, values, max_size=3)),
    lambda inner: st.builds(
        lambda t, x, c: (t, x, c), names, st.dictionaries(names, values, max_size=2), st.lists(inner, max_size=3)
    ),
    max_leaves=12,
)


def build(tree: Tree) -> ElementTree.Element:
    element = ElementTree.Element(tree[0], tree[1])
    element.extend(build(child) for child in tree[2])
    return element


def plain(element: Element) -> Tree:
    return element.tag, dict(element.attributes), [plain(child) for child in element.children]


@given(trees)
def test_reads_what_the_standard_library_writes(tree: Tree) -> None:
    text = ElementTree.tostring(build(tree), encoding="unicode")
    assert plain(parse(text, "f.xml", root=tree[0])) == tree


@settings(max_examples=150)
@given(
    st.text(max_size=60)
    | st.lists(
        st.sampled_from(
            [
                "<a",
                "</a>",
                "<a>",
                ">",
                "/>",
                "<!DOCTYPE ",
                "&",
                "<?",
                "[",
                'x="1"',
                " ",
                "\n",
                "<![CDATA[",
                "]]>",
                "<!--",
                "-->",
            ]
        ),
        max_size=12,
    ).map("".join)
)
def test_any_text_gives_an_element_or_a_file_error(text: str) -> None:
    try:
        assert read(text).tag == "a"
    except FileError as error:
        message = str(error)
    else:
        return
    assert message.startswith("f.xml")


def test_limits_are_those_documented() -> None:
    assert (safe_xml.MAX_BYTES, safe_xml.MAX_DEPTH, safe_xml.MAX_VALUE) == (10 * 2**20, 64, 4096)
