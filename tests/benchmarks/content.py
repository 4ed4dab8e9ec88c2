"""What the benchmarks store: seeded text that compresses about as well as prose does.

Text is made of 3,000 invented words, drawn with Zipf's frequencies as in any language, cut into sentences that end in
a number. At 10 kB, zlib makes it 2.9 times smaller and zstd 2.6 times: about what they do to English. A constant text
would flatter every compressor and hex noise would insult it. Everything comes from a seed: each saver, each round and
each day stores the same (but for the ids that LangGraph draws at random).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.messages.tool import tool_call

SYLLABLES = "ka ro mi ten sol va le pur dra nes qui ton ber ul esh ami cor fil gra hin jo lam".split()
VOCABULARY = 3000


@cache
def vocabulary() -> tuple[list[str], list[float]]:
    """The words, and the running sum of their Zipf weights."""
    rng = random.Random("vocabulary")
    words = ["".join(rng.choices(SYLLABLES, k=rng.choice((1, 2, 2, 3, 3, 4)))) for _ in range(VOCABULARY)]
    return words, list(accumulate(1 / rank for rank in range(1, VOCABULARY + 1)))


@cache
def text(seed: str, size: int) -> str:
    """`size` characters; the same seed gives the same text."""
    rng = random.Random(seed)
    words, weights = vocabulary()
    picked = rng.choices(words, cum_weights=weights, k=size // 3)
    sentences = (picked[start : start + 12] for start in range(0, len(picked), 12))
    prose = " ".join(f"{' '.join(words).capitalize()} {rng.randrange(10_000)}." for words in sentences)
    return prose[:size].ljust(size, ".")


@cache
def texts(name: str, count: int, size: int) -> tuple[str, ...]:
    """`count` different texts. Call it before the clock starts: making them takes longer than storing them."""
    return tuple(text(f"{name}-{number}", size) for number in range(count))


def record(number: int, size: int = 2000) -> dict[str, Any]:
    """One message-like dict: its text, and about 200 bytes around it."""
    rng = random.Random(number)
    return {
        "id": f"{rng.getrandbits(128):032x}",
        "role": ("user", "assistant", "tool")[number % 3],
        "content": text(f"record-{number}", size),
        "usage": {"input_tokens": rng.randrange(9000), "output_tokens": rng.randrange(900)},
        "tool_calls": [{"id": f"call_{rng.getrandbits(64):016x}", "name": "search", "args": {"page": number}}],
    }


def message(number: int, size: int = 2000) -> AnyMessage:
    """The same as a LangChain message, which a serializer treats as an object of its own."""
    fields = record(number, size)
    call = fields["tool_calls"][0]
    if fields["role"] == "user":
        return HumanMessage(fields["content"], id=fields["id"])
    if fields["role"] == "tool":
        return ToolMessage(fields["content"], id=fields["id"], name=call["name"], tool_call_id=call["id"])
    tokens = fields["usage"]
    return AIMessage(
        fields["content"],
        id=fields["id"],
        tool_calls=[tool_call(**call)],
        usage_metadata={**tokens, "total_tokens": sum(tokens.values())},
    )


Maker = Callable[[int], Any]
"""`record` or `message`."""


def many(make: Maker, size: int) -> list[Any]:
    """About `size` bytes of them: what a state is by its hundredth step."""
    return [make(number) for number in range(size // 2200)]
