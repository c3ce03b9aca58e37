"""Pictures of the documentation: the scripts that make them can be imported; a recording shows each frame once."""

import sys
from pathlib import Path
from xml.etree import ElementTree as ET

HACK = Path(__file__).parents[2] / "hack"
sys.path.insert(0, str(HACK))
try:
    import picture
    import screenshots
finally:
    sys.path.remove(str(HACK))

SVG = "{http://www.w3.org/2000/svg}"


def frames(count):
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 {number + 1}"><text>{number}</text></svg>'
        for number in range(count)
    ]


def test_a_recording_shows_its_frames_in_order_with_the_first_and_the_last():
    for count in (1, 2, 100):
        root = ET.fromstring(picture.animated(frames(count)))
        shown = [int(each.text) for each in root.iter(f"{SVG}text")]
        assert shown == sorted(set(shown))
        assert (shown[0], shown[-1], len(shown)) == (0, count - 1, min(count, picture.FRAMES))
        assert root.attrib["viewBox"] == f"0 0 100.0 {float(count)}"
        style = root.find(f"{SVG}style").text
        assert all(f"#shown{number} " in style for number in range(len(shown)))


def test_the_pictures_of_the_page_are_those_that_the_documentation_shows():
    made = {path.stem for path in (HACK.parent / "docs/images").glob("page-*.png")}
    assert set(screenshots.PICTURES) == made
