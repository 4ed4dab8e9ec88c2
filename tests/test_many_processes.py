"""Many processes and threads on one file: who starts, who waits, who is never left out."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from conftest import Face, checkpoint, config, put
from scripts import run
from sqlfile import write_lock

from langgraph_sqlite_ckpt import SqliteSaver


def test_sixteen_processes_start_at_once_on_a_current_file_in_which_somebody_writes(path: Path) -> None:
    script = """
        with SqliteSaver(PATH) as saver:
            for number in range(20): put(saver, {"a": [number]}, at=config("before"))
        gate, go = os.pipe()
        children = []
        for number in range(16):
            pid = os.fork()
            if pid == 0:
                os.close(go)
                os.read(gate, 1)
                code = 1
                try:
                    for _ in range(3):  # opening and closing at the same time as others: the last to close cuts the -wal
                        with SqliteSaver(PATH) as saver:
                            put(saver, {"a": ["x" * 300]}, at=config(f"process {number}"))
                            assert len(list(saver.list(config("before")))) == 20
                            assert asyncio.run(saver.aget_tuple(config(f"process {number}"))) is not None
                    code = 0
                except BaseException as error:
                    print(number, repr(error), flush=True)
                os._exit(code)
            children.append(pid)
        os.close(go)
        failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in children)
        with SqliteSaver(PATH) as saver:
            print("failed:", failed, "stored:", len(list(saver.list(None))), saver.verify())
    """
    assert run(script, path, seconds=90).strip() == "failed: 0 stored: 68 []"


def test_a_foreign_lock_of_seven_seconds_is_waited_out_by_sync_and_async_writers(saver: SqliteSaver, path: Path) -> None:
    put(saver, at=config("before"))

    async def both() -> None:
        thread = threading.Thread(target=put, args=(saver, {"a": "sync"}), kwargs={"at": config("sync")})
        thread.start()
        await asyncio.gather(*(saver.aput(config(f"async {n}"), checkpoint({"a": n}), {}, {}) for n in range(3)))
        await asyncio.to_thread(thread.join, 20)

    with write_lock(path) as db:
        release = threading.Timer(7, db.execute, ["ROLLBACK"])
        release.start()
        begun = time.monotonic()
        asyncio.run(both())
        assert 6.5 < time.monotonic() - begun < 15
        release.join()
    assert len(list(saver.list(None))) == 5


def test_no_writer_is_starved_by_others_who_write_without_a_pause(path: Path) -> None:
    script = """
        def work(number, pipe):
            with SqliteSaver(PATH, synchronous="normal") as saver:
                count, longest, end = 0, 0.0, time.monotonic() + 4
                while time.monotonic() < end:
                    begun = time.monotonic()
                    put(saver, {"a": count}, at=config(f"process {number}"))
                    longest = max(longest, time.monotonic() - begun)
                    count += 1
            os.write(pipe, f"{count} {longest}\\n".encode())
        read, write = os.pipe()
        processes = [multiprocessing.get_context("fork").Process(target=work, args=(number, write)) for number in range(6)]
        for process in processes: process.start()
        for process in processes: process.join(40)
        os.close(write)
        told = [line.split() for line in os.fdopen(read).read().splitlines()]
        counts = sorted(int(count) for count, _ in told)
        print(len(told), [process.exitcode for process in processes] == [0] * 6)
        print(counts[0] > 0, max(float(longest) for _, longest in told) < 20, counts)
    """
    out = run(script, path, seconds=90).splitlines()
    assert out[0] == "6 True", out
    assert out[1].startswith("True True"), out


def test_a_thread_pool_with_one_saver_loses_nothing(face: Face) -> None:
    with ThreadPoolExecutor(8) as pool:
        stored = list(pool.map(lambda number: put(face, {"a": [number]}, at=config(f"t{number % 5}")), range(80)))
        found = list(pool.map(lambda at: face.get_tuple(at).config, stored))
    assert found == stored
    assert sum(len(list(face.list(config(f"t{number}")))) for number in range(5)) == 80


def test_several_event_loops_at_once_share_one_saver(saver: SqliteSaver) -> None:
    async def work(name: str) -> list[str]:
        stored = await asyncio.gather(*(saver.aput(config(name), checkpoint({"a": n}), {}, {}) for n in range(10)))
        return [each["configurable"]["checkpoint_id"] for each in stored]

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda number: asyncio.run(work(f"loop {number}")), range(4)))
    for number, ids in enumerate(made):
        listed = {item.config["configurable"]["checkpoint_id"] for item in saver.list(config(f"loop {number}"))}
        assert listed == set(ids)
