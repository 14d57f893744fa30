"""Wrong command lines, wrong files, damaged runs: each gets one sentence and its exit code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from programs import answer, as_in_a_program, command

from snapgrad import machine
from snapgrad.report import tables
from snapgrad.report.collect import collect
from snapgrad.runs import options
from snapgrad.runs.build import build
from snapgrad.runs.checkpoint import Totals
from snapgrad.runs.directory import RunDirectory

COPY = "train", "copy"
CHARS = "train", "chars"

# Words that stand for what the fixture `place` makes: FILE, EMPTY (a file), FOLDER, MISSING.
COMMANDS = [
    ((*COPY, "--units", "0"), "`units` must be an integer >= 1, got 0"),
    ((*COPY, "--rewire", "rigl"), '`rewire` must be "set" or "probe" with algorithm \'snap\', got "rigl"'),
    ((*COPY, "--rewire", "set", "--sparsity", "0"), "`sparsity` must be larger than 0 with `rewire`, got 0.0"),
    (
        (*COPY, "--sparsity", "0", "--prune", "0.5", "--prune-end", "100"),
        "`prune_end` must be a multiple of `prune_every`",
    ),
    (
        ("reproduce", "copy", "--draw", "--results", "nowhere"),
        "`results` must be a folder with results of the size small",
    ),
    ((*COPY, "--layers", "0"), "`layers` must be an integer >= 1, got 0"),
    ((*COPY, "--batch", "-1"), "`batch` must be an integer >= 1, got -1"),
    ((*COPY, "--tokens", "0"), "`tokens` must be an integer >= 1, got 0"),
    ((*COPY, "--log-every", "0"), "`log_every` must be an integer >= 1, got 0"),
    ((*COPY, "--checkpoint-every", "nan"), "`checkpoint_every` must be a number >= 0, got nan"),
    ((*COPY, "--sparsity", "1"), "`sparsity` must be a number in [0, 1), got 1.0"),
    ((*COPY, "--sparsity", "nan"), "`sparsity` must be a number in [0, 1), got nan"),
    ((*COPY, "--seed", "-1"), "`seed` must be in [0, 2^32), got -1"),
    ((*COPY, "--seed", str(2**70)), "`seed` must be in [0, 2^32), got 1180591620717411303424"),
    ((*COPY, "--length", "0"), "`length` must be an integer >= 1, got 0"),
    ((*COPY, "--update-every", "0"), "`update_every` must be an integer >= 1, got 0"),
    ((*COPY, "--order", "0"), "`order` must be an integer >= 1"),
    ((*COPY, "--algorithm", "bptt", "--order", "2"), "`order` must not be given with algorithm 'bptt', got 2"),
    ((*COPY, "--algorithm", "uoro", "--rank", "0"), "`rank` must be an integer >= 1, got 0"),
    ((*COPY, "--rank", "2"), "`rank` must not be given with algorithm 'snap', got 2"),
    ((*COPY, "--learning-rate", "0"), "`learning_rate` must be a number > 0, got 0.0"),
    ((*COPY, "--learning-rate", "nan"), "`learning_rate` must be a number > 0, got nan"),
    ((*COPY, "--learning-rate", "inf"), "`learning_rate` must be a number > 0, got inf"),
    ((*COPY, "--clip", "0"), "`clip` must be a number > 0, got 0.0"),
    ((*COPY, "--weight-decay", "-1"), "`weight_decay` must be a number > 0, got -1.0"),
    ((*COPY, "--warmup", "-1"), "`warmup` must be an integer >= 0, got -1"),
    ((*COPY, "--schedule", "cosine", "--warmup", "100000000"), "`warmup` must be less than the 62500 updates"),
    ((*COPY, "--schedule", "linear", "--schedule-updates", "3"), "at least the 62500 updates of the run, got 3"),
    ((*COPY, "--schedule-updates", "3"), "`schedule_updates` must not be given with schedule 'constant', got 3"),
    ((*COPY, "--schedule", "linear", "--update-every", "2"), "`schedule_updates` must be given where the updates"),
    ((*COPY, "--schedule", "cosine", "--optimiser", "sm3"), "`optimiser` must be one that takes a schedule"),
    ((*COPY, "--optimiser", "adm"), "got 'adm'; did you mean 'adam'?"),
    ((*COPY, "--optimiser", "lbfgs"), "`optimiser` must name an optimiser of Optax that takes a learning rate"),
    ((*COPY, "--optimiser", ""), "`optimiser` must be a name or a call such as adam(b1=0.5), got ''"),
    ((*COPY, "--optimiser", "adam(0.5)"), "`optimiser` must be a name or a call such as adam(b1=0.5)"),
    ((*COPY, "--optimiser", "adam(b1=open('x'))"), "`optimiser` must be a name or a call such as adam(b1=0.5)"),
    ((*COPY, "--optimiser", "adam(b3=1)"), "`optimiser` must have arguments that adam takes (b1, b2, eps,"),
    (
        (*COPY, "--optimiser", "adam(b1='x')"),
        "`optimiser` must have arguments that Optax can use, got \"adam(b1='x')\"",
    ),
    ((*COPY, "--optimiser", "adam(learning_rate=1)"), "`optimiser` must not have a learning rate in it"),
    ((*COPY, "--out", "FILE"), "`out` must be new or empty, got '"),
    ((*COPY, "--out", "FILE/run"), "`out` must be in a folder, got '"),
    ((*COPY, "--out", "FILE/deeper/run"), "`out` must be in a folder, got '"),
    ((*COPY, "--config", "FOLDER"), "`config` must be a TOML file that can be read, got '"),
    ((*COPY, "--config", "MISSING"), "MISSING' (No such file or directory)"),
    ((*COPY, "--config", "FILE"), "`config` must be valid TOML, got '"),
    ((*COPY, "--config", "FILE", "--config", "FILE"), "`config` must be given once"),
    ((*CHARS, "--continuous", "--corpus", "FILE"), "`update_every` must be an integer with `continuous`"),
    ((*CHARS, "--validate-every", "0"), "`validate_every` must be an integer >= 1, got 0"),
    ((*CHARS, "--corpus", "MISSING"), '`corpus` must be "stdlib", "wikitext2", "wikitext103" or the path of a text'),
    ((*CHARS, "--corpus", "EMPTY"), "`corpus` must have at least 40 bytes, got 0"),
    ((*CHARS, "--corpus", "FOLDER"), "`corpus` must have at least 2 bytes in valid.txt of "),
    ((*CHARS, "--corpus", "FILE", "--length", "9999"), "`corpus` must have more than `length`, 9999 bytes"),
    ((*CHARS, "--corpus", "FILE", "--data-dir", "FOLDER"), "`data_dir` must not be given with corpus '"),
    (("resume", "MISSING"), "`run` must be a directory with a config.toml, got '"),
    (("resume", "FILE"), "`run` must be a directory with a config.toml, got '"),
    (("resume", "FOLDER"), "`run` must be a directory with a config.toml, got '"),
    (("generate", "MISSING"), "`run` must be a directory with a config.toml, got 'MISSING'"),
    (("generate", "MISSING", "--prompt", ""), "`prompt` must have at least one byte, got none"),
    (("generate", "MISSING", "--temperature", "-1"), "`temperature` must be a finite number >= 0, got -1.0"),
    (("generate", "MISSING", "--length", "0"), "`length` must be an integer >= 1, got 0"),
    (("generate", "MISSING", "--seed", "-1"), "`seed` must be in [0, 2^32), got -1"),
    (("report",), "`runs` must be directories of runs, or folders of them, got none"),
    (("report", "MISSING"), "`runs` must be directories of runs, or folders of them, got "),
    (("report", "FOLDER"), "`runs` must be directories of runs, or folders of them, got "),
    (("report", "FOLDER", "--out", "FILE"), "`out` must be a folder, got '"),
    (("demo", "--tokens", "0"), "`tokens` must be an integer >= 1, got 0"),
    (("demo", "--seeds", "0"), "`seeds` must be an integer >= 1, got 0"),
    (("demo", "--out", "FILE/demo"), "`out` must be a folder, got '"),
    (("costs", "--units", "0"), "`units` must be an integer >= 1, got 0"),
    (("costs", "--sparsity", "2"), "`sparsity` must be a number in [0, 1), got 2.0"),
    (("costs", "--seed", str(2**70)), "`seed` must be in [0, 2^32)"),
]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to run in, with files of the wrong kind."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("not TOML, but long enough to be a text. " * 30)
    (tmp_path / "EMPTY").touch()
    (tmp_path / "FOLDER").mkdir()
    (tmp_path / "FOLDER" / "train.txt").write_text("text " * 100)
    (tmp_path / "FOLDER" / "valid.txt").touch()
    return tmp_path


@pytest.mark.parametrize(("args", "message"), COMMANDS, ids=lambda value: " ".join(value[:9]) if value else "")
def test_a_wrong_command_line_is_one_sentence_and_code_2(args, message, place):
    before = set(place.rglob("*"))
    done = answer(*args)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert message in done.err
    assert done.err.count("\n") == 1
    made = {path.relative_to(place).parts[0] for path in set(place.rglob("*")) - before}
    assert made <= {"report", "demo"}  # empty folders at most


@pytest.mark.parametrize(
    "args",
    [["nonsense"], ["train"], ["train", "nonsense"], [*COPY, "--unit", "3"], [*COPY, "--units", "many"], ["resume"]],
)
def test_words_that_are_no_command_are_refused_by_the_parser(args, place):
    assert answer(*args).code == 2


CONFIGS = [
    ("unit = 3", "'unit' in FILE is not an option of `train copy`; did you mean 'units'?"),
    ("zzz = 3", "'zzz' in FILE is not an option of `train copy`; the keys are cell, units"),
    ('task = "chars"', "`task` must be 'copy' in FILE, got 'chars'"),
    ("units = [3]", "`units` must be an integer in FILE, got [3]"),
    ("units = 3.5", "`units` must be an integer in FILE, got 3.5"),
    ('units = "3"', "`units` must be an integer in FILE, got '3'"),
    ("units = true", "`units` must be an integer in FILE, got True"),
    ("sparsity = true", "`sparsity` must be a number in FILE, got True"),
    ("tensorboard = 1", "`tensorboard` must be true or false in FILE, got 1"),
    ("optimiser = 3", "`optimiser` must be a string in FILE, got 3"),
    ('algorithm = "snapp"', "\"ok\" or \"frozen\" in FILE, got 'snapp'; did you mean 'snap'?"),
    ('update_every = "never"', "`update_every` must be an integer or \"sequence\" in FILE, got 'never'"),
    ("units = ", "`config` must be valid TOML, got 'FILE' (Invalid value"),
    ("units = 3\nunits = 4", "`config` must be valid TOML, got 'FILE' (Cannot overwrite"),
    (b"\xff", "`config` must be valid TOML, got 'FILE' ('utf-8' codec"),
]


@pytest.mark.parametrize(("text", "message"), CONFIGS, ids=[str(text) for text, _ in CONFIGS])
def test_what_is_wrong_in_a_config_file_is_said_with_its_name(text, message, place):
    (place / "FILE").write_bytes(text if isinstance(text, bytes) else text.encode())
    done = answer(*COPY, "--config", "FILE")
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run that was interrupted after two records, without having been trained."""
    given = options.CopyOptions(units=3, batch=2, algorithm="bptt", tokens=100, backend="reference")
    run = RunDirectory.create(tmp_path_factory.mktemp("begun") / "run", given, data="")
    for tokens in (10, 20):
        run.append({"tokens": tokens, "updates": tokens // 2, "seconds": 1.0, "bits": 1.0, "level": 1})
    with as_in_a_program():
        run.save(build(given).start(), Totals(20, 10, 1.0), given)
    return run


RECORD = '{"tokens": 20, "updates": 10, "seconds": 1.0, "bits": 1.0, "level": 1}'
DAMAGED = [  # a file, what is in it (None: a folder), the commands that read it, and what they say
    ("about.json", "", "resume report", "about.json must be JSON, got something else"),
    ("about.json", "[1]", "resume report", "about.json must be a JSON object, got list"),
    ("about.json", "{}", "resume report", "about.json must have 'snapgrad', got only nothing"),
    ("about.json", b"\xff", "resume report", "about.json must be JSON, got something else"),
    ("about.json", None, "resume report", "about.json': is a directory"),
    ("outcome.json", "", "resume report", "outcome.json must be JSON, got something else"),
    ("outcome.json", '{"status": "finished"}', "resume report", "outcome.json must have 'tokens', got only status"),
    ("outcome.json", RECORD[:-1] + ', "status": "lost"}', "resume report", "`status` must be 'finished' or 'diverged'"),
    ("outcome.json", None, "resume report", "outcome.json': is a directory"),
    ("metrics.jsonl", "nonsense\n", "resume report", "line 1 of "),
    (
        "metrics.jsonl",
        RECORD + '\n{"tokens": 30}\n',
        "resume report",
        "metrics.jsonl must have 'updates', got only",
    ),
    ("metrics.jsonl", RECORD.replace("10", '"x"') + "\n", "resume report", "`updates` must be a number in line 1 of "),
    ("metrics.jsonl", RECORD.replace("20", "10") + "\n", "resume", "metrics.jsonl must have a record at 20 tokens"),
    ("metrics.jsonl", None, "resume report", "metrics.jsonl': is a directory"),
    ("config.toml", "", "resume report", "`task` must be one of copy, chars, "),
    ("config.toml", "task = [1]", "resume report", "config.toml, got [1]"),
    ("config.toml", 'task = "copy"', "resume report", "`cell` must be in "),
    ("config.toml", "task = ", "resume report", "`config` must be valid TOML, got '"),
    ("config.toml", None, "resume", "`run` must be a directory with a config.toml"),
    ("lock", None, "resume", "lock': is a directory"),
    ("checkpoints", "a file", "resume", "a run with records must have a checkpoint, got none in "),
]


@pytest.mark.parametrize(("name", "content", "commands", "message"), DAMAGED, ids=lambda value: str(value)[:40])
def test_a_damaged_run_is_refused_with_the_name_of_the_file(name, content, commands, message, begun, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(begun.path, path)
    damaged = path / name
    if damaged.is_dir():
        shutil.rmtree(damaged)
    damaged.unlink(missing_ok=True)
    if content is None:
        damaged.mkdir()
    else:
        damaged.write_bytes(content if isinstance(content, bytes) else content.encode())
    for word in commands.split():
        done = answer("resume", path) if word == "resume" else answer("report", path, "--out", tmp_path / "report")
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("error: ")
        assert message in done.err
        assert str(path) in done.err
        assert done.err.count("\n") == 1


def test_only_a_character_run_is_generated_from(begun):
    done = answer("generate", begun.path)
    assert (done.code, done.err) == (2, "error: `run` must be a run of `train chars`, got one of `train copy`\n")


def test_an_edited_seed_is_refused_by_name(begun, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(begun.path, path)
    config = path / "config.toml"
    config.write_text(config.read_text().replace("seed = 0", "seed = 1"))
    done = answer("resume", path)
    assert done.code == 2
    assert done.err.startswith(f"error: `seed` must be the one that the run was begun with, 0, got 1 in {config}: ")


def test_info_has_no_line_without_a_word(monkeypatch):
    monkeypatch.setattr(machine, "describe", lambda: {"backend": "native", "reason": ""})
    assert answer("info").out == "backend       native\n"


def test_an_unexpected_error_has_a_code_of_its_own_and_a_traceback_if_asked_for(monkeypatch):
    def fail():
        raise RuntimeError("one line\nand another")

    monkeypatch.setattr(machine, "describe", fail)
    done = answer("info")
    assert done.code == 70
    assert done.err == (
        "error: unexpected RuntimeError (one line): this should not happen, please report it; "
        "SNAPGRAD_TRACEBACK=1 shows where it comes from\n"
    )
    monkeypatch.setenv("SNAPGRAD_TRACEBACK", "1")
    done = answer("info")
    assert done.code == 70
    assert done.err.startswith("Traceback")
    assert "in fail" in done.err


def test_an_error_from_inside_a_library_is_not_called_a_wrong_option(monkeypatch):
    monkeypatch.setattr(machine, "describe", lambda: json.loads("{"))
    assert answer("info").code == 70


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_output_that_cannot_be_written_is_one_sentence():
    with open("/dev/full", "w") as full:
        done = subprocess.run(command("--version"), stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (2, "error: cannot read or write: no space left on device\n")


def test_a_pipe_that_is_closed_ends_the_command_quietly(monkeypatch):
    def close():
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(machine, "describe", close)
    assert answer("info") == (141, "", "")


def test_commands_that_are_printed_can_be_pasted(begun, tmp_path):
    path = tmp_path / "it's a run"
    shutil.copytree(begun.path, path)
    advice = answer(*COPY, "--out", path).err.strip().partition("go on with it: ")[2]
    printed = subprocess.run(f'set -- {advice}; printf %s "$3"', shell=True, capture_output=True, text=True)
    assert printed.stdout == str(path)


def test_a_network_that_ends_worse_than_guessing_is_called_so(tmp_path):
    args = "--algorithm", "frozen", "--units", 3, "--batch", 2, "--tokens", 200, "--length", 2, "--backend", "reference"
    done = answer(*COPY, *args, "--learning-rate", 1000, "--log-every", 50, "--out", tmp_path / "run")
    assert done.code == 0
    assert "warning: the network is worse than guessing: " in done.err
    found = collect([tmp_path / "run"])
    assert "(the network is worse than guessing)" in tables.results(found).rows[0][0]
    fine = answer(*COPY, *args, "--out", tmp_path / "fine", "--json")
    assert (fine.code, fine.err) == (0, "")
    assert json.loads(fine.out)["status"] == "finished"
