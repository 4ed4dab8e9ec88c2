"""A short run of `python -m tests.torn_files`: never a state that was not committed."""

import random
from pathlib import Path

from torn_files import damaged_pages, torn_wals


def test_a_wal_that_is_cut_or_flipped_anywhere_gives_a_prefix_of_what_was_committed(tmp_path: Path) -> None:
    counted = torn_wals(tmp_path, random.Random(1), cut=50, flipped=10)
    assert sum(counted.values()) > 70
    assert min(counted[outcome] for outcome in ("all", "some", "none")) > 0


def test_pages_that_are_damaged_give_the_right_value_or_an_error_of_ours(tmp_path: Path) -> None:
    counted = damaged_pages(tmp_path, random.Random(2), 100)
    assert counted["right"] > 100
    assert counted["error"] > 100
