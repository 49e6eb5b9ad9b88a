"""What comes from others is safe to show, to file and to publish, and what is harmless stays as it is."""

import shlex
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.base.untrusted import (
    HOME_FOLDER,
    MAX_CACHED,
    escape_control,
    escape_line,
    find_confusable,
    hide_home_folders,
    make_file_stem,
    redact_all,
    redact_command,
    redact_secrets,
    spreadsheet_cell,
)

TEXT = st.text(st.characters(), max_size=60)


@given(TEXT)
def test_printable_text_has_nothing_that_a_terminal_obeys(text: str) -> None:
    shown = escape_control(text)
    obeyed = {"Cc", "Cs", "Zl", "Zp"}
    assert not [each for each in shown if unicodedata.category(each) in obeyed and each not in "\n\t"]
    assert not set(shown) & set(
        "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u061c\ufeff"
    )
    assert escape_control(shown) == shown
    assert len(escape_line(text).splitlines()) <= 1


def test_text_of_people_is_printed_as_it_is() -> None:
    for text in (
        "plain",
        "two\nlines\tand a tab",
        "gü, gö, 图, שלום",
        "می\u200cخواهم",
        "👩\u200d🔬",
        "3 × 4 – „x“",
    ):
        assert escape_control(text) == text
    assert escape_control("\x1b[2J\x9b1mev\u202eil\r") == "\\x1b[2J\\x9b1mev\\u202eil\\r"


def test_cells_that_a_spreadsheet_would_run_begin_with_an_apostrophe() -> None:
    for runs in (
        '=HYPERLINK("http://a")',
        "+1+1",
        "-2+3",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "-x",
        "=",
        "+",
        "-1 rank",
    ):
        assert spreadsheet_cell(runs) in (f"'{runs}", runs if runs in "+-" else None)
    for cell in ("", "a=b", "-", "-0.5", "+1e-3", "-1,234", "-inf", -3, 0.5, None, True):
        assert spreadsheet_cell(cell) is cell


@given(st.lists(st.one_of(TEXT, st.text("aAgü-@~ ./1", max_size=6)), min_size=2, max_size=8, unique=True))
def test_different_names_have_different_files_of_bounded_length(names: list[str]) -> None:
    stems = [make_file_stem(name) for name in names]
    assert len(set(stems)) == len(names)
    assert all(
        len(stem) <= 100 and "/" not in stem and stem.isascii() and stem.isprintable() for stem in stems
    )


def test_names_of_files_stay_readable() -> None:
    assert [make_file_stem(name) for name in ("ogbn-products", "g-x@1-16", "g-x-1-16")] == [
        "ogbn-products",
        "g-x@1-16",
        "g-x-1-16",
    ]
    assert make_file_stem("gü") != make_file_stem("gö") and make_file_stem("gü").startswith("g-~")
    assert len(make_file_stem("x" * 3000)) < 100
    forged = make_file_stem("gü")  # a name made to look like that of another file
    assert make_file_stem(forged) != forged


WORD = "hunter2hunter2hunter2"
SHOWING = [
    f"prog --api-key={WORD}",
    f"prog --api-key {WORD} --lr 0.1",
    f"prog --password '{WORD}'",
    f"WANDB_API_KEY={WORD} prog",
    f"git clone https://me:{WORD}@host.example/x",
    f"wget https://host.example/x?a=1&token={WORD}&b=2",
    f"curl -H 'Authorization: Bearer {WORD}'",
    f"curl -H 'X-Auth-Token: {WORD}'",
    f"sh -c 'prog --auth-token {WORD}; prog'",
    f'{{"password": "{WORD}"}}',
    f"hf_{WORD} ghp_{WORD}",
    f"SLURM_JWT={WORD}",
    f"eyJhbGciOiJIUzI1NiJ9.eyJ{WORD}.{WORD}",
    f"prog --pat {WORD}",
    f"npm_{WORD} dckr_pat_{WORD} pypi-{WORD} AIza{WORD}{WORD} xapp-{WORD}",
    f"sh -c 'PGPASSWORD={WORD} psql' MYTOKEN={WORD}",
    f"prog --token --{WORD}",
]


@pytest.mark.parametrize("text", SHOWING)
def test_secrets_are_left_out_wherever_they_stand(text: str) -> None:
    assert WORD not in redact_secrets(text)
    assert WORD not in redact_command([text] if text.startswith("{") else shlex.split(text))
    assert WORD not in redact_command(["sh", "-c", text])
    for long in ("", " word" * MAX_CACHED):
        assert WORD not in str(redact_all({"a": [{"command": text + long}], "api_key": WORD}))
    assert redact_secrets(redact_secrets(text)) == redact_secrets(text)


def test_private_keys_are_left_out() -> None:
    key = f"-----BEGIN RSA PRIVATE KEY-----\n{WORD}\n{WORD}\n-----END RSA PRIVATE KEY-----"
    assert redact_secrets(f"before {key} after") == "before REDACTED after"
    assert WORD not in redact_command(["prog", "--key-text", key])


@pytest.mark.parametrize(
    "folder",
    [
        "/home/ann",
        "/root",
        "/Users/ann",
        "file:///home/ann",
        "/nfs/home/ann",
        "/global/homes/a/ann",
        "C:\\Users\\ann",
        "C:\\\\Users\\\\ann",
    ],
)
def test_home_folders_are_left_out(folder: str) -> None:
    hidden = hide_home_folders(f"harness run --out {folder}/x --in={folder}")
    assert "ann" not in hidden and "/root" not in hidden and hidden.count("~") == 2
    assert hidden.endswith("~") and not HOME_FOLDER.search(hidden)


def test_paths_that_are_not_home_folders_are_kept() -> None:
    text = "https://host.example/home/x /opt/home-made data/home/x /opt/rooted ~/home/x /usr/share/homes"
    assert hide_home_folders(text) == text


@pytest.mark.parametrize("name", ["Some Group", "Grüße", "Группа", "東京大学 Group", "한국 연구소", "A1-b"])
def test_names_of_one_alphabet_are_not_confusable(name: str) -> None:
    assert find_confusable(name) == ""


@pytest.mark.parametrize("name", ["Hon\u0435st", "\u0440lexus", "\uff41", "\u03bfrder", "\u00b5-group"])
def test_confusable_names_are_found(name: str) -> None:
    assert find_confusable(name)


@pytest.mark.parametrize(
    "text",
    [
        "python main.py --num-tokens 512 --tokens=5 --token-dim 4 --sort-key=a --keys b --author me --lr=0.1",
        "KeyError: 'run_id'; see https://host.example/a?b=c and me@host.example",
        "harness run --strategy plexus --dataset tiny-sbm --set strategy.params.passes=2",
        "epoch 3 of 10, 0.1 s each: loss 0.5",
    ],
)
def test_values_that_are_not_secret_are_kept(text: str) -> None:
    assert redact_secrets(text) == text


def test_a_long_log_is_read_in_a_time_in_proportion_to_its_length() -> None:
    def seconds(text: str) -> float:
        begun = time.process_time()
        redact_secrets(text)
        return time.process_time() - begun

    units = (
        "-----BEGIN PRIVATE KEY-----",
        "password",
        "x-key-",
        "a.",
        "eyJ-",
        "sk-",
        "-token ",
        "https://a:",
    )
    for unit in (*units, "token:", "--a-", "bearer "):
        short, long = seconds(unit * 4_000), seconds(unit * 40_000)
        assert long < 60 * max(short, 0.005), unit
