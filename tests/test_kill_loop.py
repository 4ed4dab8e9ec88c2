"""A short run of `python -m tests.kill_loop`: nothing that was acknowledged is lost when its process is killed."""

from pathlib import Path

from kill_loop import Entry, Ledger, entries
from scripts import run


def test_forty_kills_among_eight_writers_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    script = """
        from pathlib import Path
        from kill_loop import kill_loop
        figures = kill_loop(Path(PATH), kills=40, seconds=12)
        print(figures.kills, figures.well, figures)
        print(figures.acknowledged > 40, figures.threads >= 16, *figures.lost, *figures.errors, *figures.problems)
    """
    out = run(script, tmp_path, seconds=90)
    assert out.splitlines()[0].split()[1] == "True", out
    assert out.splitlines()[1] == "True True", out
    assert int(out.split()[0]) >= 20


def test_the_ledger_would_tell_of_a_loss(tmp_path: Path) -> None:
    script = """
        from pathlib import Path
        from kill_loop import kill_loop, _figures
        folder = Path(PATH)
        assert kill_loop(folder, kills=3, processes=2, every=0.5).well
        with sqlite3.connect(folder / "agent.db") as db:
            db.execute("DELETE FROM write WHERE id = (SELECT max(id) FROM write)")
            db.execute("DELETE FROM checkpoint WHERE seq = (SELECT min(seq) FROM checkpoint)")
        db.close()
        figures = _figures(folder, 3, 1)
        print(figures.well, len(figures.lost) > 0)
    """
    assert run(script, tmp_path, seconds=90).split() == ["False", "True"]


def test_a_line_that_was_cut_off_by_the_kill_counts_for_nothing(tmp_path: Path) -> None:
    Ledger(tmp_path / "a.ledger").note(Entry("put", "t", "1", "x"))
    with (tmp_path / "a.ledger").open("a") as file:
        file.write('["put", "t", "2", "')
    assert list(entries(tmp_path)) == [Entry("put", "t", "1", "x")]
