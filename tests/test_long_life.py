"""A short run of `python -m tests.long_life`: memory, open files and threads stay flat."""

from pathlib import Path

from scripts import run


def test_a_process_that_goes_on_and_on_does_not_grow(tmp_path: Path) -> None:
    script = """
        from pathlib import Path
        from long_life import life
        moments = list(life(Path(PATH), steps=1000, threads=20, keep_last=20))
        first, last = moments[3], moments[-1]
        print(last.steps, last.megabytes - first.megabytes < 12, last.files == first.files, last.threads == first.threads)
        print(*moments, sep="\\n")
    """
    out = run(script, tmp_path, seconds=120)
    assert out.splitlines()[0] == "1000 True True True", out
