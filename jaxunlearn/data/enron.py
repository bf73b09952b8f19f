"""Who has which address: [person, PII] pairs and the graph of who writes to whom, from a folder of mail.

The layout is that of the Enron corpus (Klimt and Yang, 2004): ``USER/FOLDER/.../N.``, one RFC 822 message a file. PrivUn
(section 3.1) extracts pairs from it and publishes neither pairs nor code; the rules here are ours, so counts need not agree.
A file that cannot be read, or says nothing of use, never stops the reading: it is counted.
"""

import dataclasses
import email
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from email.header import decode_header, make_header
from email.message import Message
from email.utils import getaddresses
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from jaxunlearn import _validate
from jaxunlearn._kinds import EMAIL, PATTERNS, PHONE
from jaxunlearn.data.pii import Corpus, Fact, question

_ADDRESS = r"[A-Za-z0-9._%+'-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,6}\.[A-Za-z]{2,}"
_WORD = r"[^\W\d_a-z][\w'’-]{0,30}\.?"
_NO_NAME = {
    "Ask",
    "Bcc",
    "Call",
    "Cc",
    "Contact",
    "Dear",
    "Email",
    "From",
    "Hi",
    "Mail",
    "Or",
    "Please",
    "See",
    "Thanks",
    "To",
}
"""Words that may stand before a name in running text with a capital letter of their own."""
_NAMED = re.compile(  # Clara Vanmont [mailto:clara@example.com], "Vanmont, Clara" <clara@example.com>
    rf"((?:{_WORD},?[ \t]{{1,3}}){{1,3}}{_WORD})[\"']?[ \t]{{0,3}}(?:\[mailto:|<(?:mailto:)?)[ \t]?({_ADDRESS})[ \t]?[\]>]"
)
_QUOTED = re.compile(r"^(?:-{2,} ?(?:Original Message|Forwarded by)|\s*_{5,}|>)", re.MULTILINE)
_ASIDE = re.compile(r"<[^>]*>|\[[^\]]*\]|\([^)]*\)")
_SIGNATURE = 8
"""Last lines of a message in which its sender's phone number is looked for."""


@dataclasses.dataclass(frozen=True)
class Mail:
    """What a folder of mail tells.

    Attributes:
        corpus: One fact for each person and kind, in alphabetical order of people; no passages.
        nodes: [v] addresses, in alphabetical order.
        edges: [e, 2] int32 (sender, recipient), no loops.
        weights: [e] float64, messages from one to the other, copies counted once.
        node_of: [n] int32, the node of the person of each fact; -1 if it has no address.
        messages: How many were read.
        skipped: What was left out, and how many: "unreadable" files; "cut" to the longest size; "copies" of a message read
            before; "no sender" address; "encoding" (text of an unknown one was read as Latin-1); "shared" addresses or
            names, of which only the most frequent pair is kept.
    """

    corpus: Corpus
    nodes: tuple[str, ...]
    edges: Int[np.ndarray, "e 2"]
    weights: Float[np.ndarray, " e"]
    node_of: Int[np.ndarray, " n"]
    messages: int
    skipped: dict[str, int]


def name_of(text: str) -> str | None:
    """A person's name from what mail programs write, or None if it is none of two to four words.

    >>> name_of('"Vanmont, Clara J." <cvanmont@example.com>'), name_of("Bruno Kin/HOU/XY@XY"), name_of("x@example.com")
    ('Clara J Vanmont', 'Bruno Kin', None)
    """
    text = _ASIDE.sub(" ", text).partition("/")[0].replace('"', " ").strip(" '\t\r\n")
    if text.count(",") == 1:
        last, first = text.split(",")
        text = f"{first} {last}"
    words = [word.rstrip(".") for word in text.split()]
    if not 2 <= len(words) <= 4 or not all(re.fullmatch(r"[^\W\d_][^\W\d_'’-]*(?:['’-][^\W\d_]+)*", w) for w in words):
        return None
    if len(words[0]) == len(words[-1]) == 1:
        return None
    name = " ".join(words)
    return name.title() if name.isupper() or name.islower() else name


def read_maildir(
    root: Path | str, *, exclude: Sequence[str] = (), phones: bool = False, longest: int = 1_000_000
) -> Mail:
    """Reads every message below a folder.

    A pair of name and address comes from a From with its X-From, from addresses with a name in To, Cc and Bcc (or the one
    recipient with the one X-To), and from "Name [mailto:address]" and "Name <address>" in headers and bodies. A name keeps
    the address that it is seen with most, an address its most frequent name; of equals the first in the alphabet.

    Args:
        root: The folder that holds a folder for each user.
        exclude: Domains whose addresses are no PII here, with those below them: a pattern makes them guessable, as the
            employer's is. They stay in the graph.
        phones: Also take phone numbers from the last lines of a message, if these name its sender.
        longest: Bytes of a message that are read.

    Returns:
        Pairs as facts, the graph, and what was skipped.

    Raises:
        InputError: The folder is not there or holds no messages.
    """
    root = Path(root)
    _validate.at_least(1, longest=longest)
    _validate.require(root.is_dir(), f"Found no folder {root}; name the maildir that holds a folder for each user.")
    reading = _Reading(phones)
    for path in _files(root):
        reading.add(path, longest)
    _validate.require(reading.messages > 0, f"Expected messages below {root}, found none that can be read.")
    return reading.result(tuple(domain.lower().lstrip("@.") for domain in exclude))


def _files(root: Path) -> Iterator[Path]:
    for folder, below, names in os.walk(root):
        below.sort()
        yield from (Path(folder) / name for name in sorted(names))


class _Reading:
    """Counts over the messages read so far."""

    def __init__(self, phones: bool):
        self.phones = phones
        self.messages = 0
        self.skipped: Counter[str] = Counter({"unreadable": 0, "cut": 0, "copies": 0, "no sender": 0, "encoding": 0})
        self.pairs: Counter[tuple[str, str]] = Counter()
        self.numbers: Counter[tuple[str, str]] = Counter()
        self.edges: Counter[tuple[str, str]] = Counter()
        self.seen: set[bytes] = set()

    def add(self, path: Path, longest: int) -> None:
        """Reads one file; whatever it holds, the next is read as well."""
        try:
            with path.open("rb") as file:
                raw = file.read(longest + 1)
            message = email.message_from_bytes(raw[:longest])
            sender = _addresses(message, "From")
            body = self._body(message)
        except (OSError, ValueError, LookupError, RecursionError, AttributeError, TypeError):
            self.skipped["unreadable"] += 1  # the parser of the standard library raises all of these on damaged mail
            return
        digest = hashlib.blake2b(
            f"{sender}{message['Date']}{message['Subject']}{body}".encode("utf-8", "replace")
        ).digest()
        if digest in self.seen:
            self.skipped["copies"] += 1
            return
        self.seen.add(digest)
        self.messages += 1
        self.skipped["cut"] += len(raw) > longest
        self._pairs_of(message, sender, body)

    def _body(self, message: Message) -> str:
        parts = [part for part in message.walk() if part.get_content_type() == "text/plain"]
        texts = []
        for part in parts:
            raw = part.get_payload(decode=True)
            raw = raw if isinstance(raw, bytes) else b""
            charset = part.get_content_charset() or "latin-1"
            try:
                texts.append(raw.decode(charset))
            except (UnicodeDecodeError, LookupError, ValueError):
                self.skipped["encoding"] += 1
                texts.append(raw.decode("latin-1"))
        return "\n".join(texts)

    def _pairs_of(self, message: Message, sender: list[tuple[str, str]], body: str) -> None:
        recipients = [pair for field in ("To", "Cc", "Bcc") for pair in _addresses(message, field)]
        if not sender:
            self.skipped["no sender"] += 1
        else:
            named = name_of(sender[0][0]) or name_of(_header(message, "X-From"))
            sender = [(named or "", sender[0][1])]
            self.edges.update((sender[0][1], to) for to in {to for _, to in recipients} - {sender[0][1]})
        if len(recipients) == 1 and not recipients[0][0]:
            recipients = [(_header(message, "X-To"), recipients[0][1])]
        written = "\n".join([*(_header(message, field) for field in ("X-From", "X-To", "X-cc", "X-bcc")), body])
        found = [(_without_lead(name), to.lower()) for name, to in _NAMED.findall(written) if not _is_wrapped(to)]
        for raw, to in [*sender, *recipients, *found]:
            if name := name_of(raw):
                self.pairs[name, to] += 1
        if self.phones and sender and sender[0][0]:
            self._numbers_of(sender[0][0], body)

    def _numbers_of(self, name: str, body: str) -> None:
        own = _QUOTED.split(body, maxsplit=1)[0]
        lines = [line for line in own.splitlines() if line.strip()][-_SIGNATURE:]
        if name.split()[-1].lower() in " ".join(lines).lower():
            self.numbers.update((name, number) for line in lines for number in PATTERNS[PHONE][0].findall(line))

    def result(self, exclude: tuple[str, ...]) -> Mail:
        """What the counts say."""
        pairs = _one_to_one(self.pairs)
        numbers = _one_to_one(self.numbers)
        self.skipped["shared"] = len(self.pairs) + len(self.numbers) - len(pairs) - len(numbers)
        address = dict(pairs)
        kept = {name: to for name, to in pairs.items() if not _below(to.partition("@")[2], exclude)}
        facts = [
            Fact(name, kind, question(name, kind), f" {pii}", pii)
            for name in sorted(kept | numbers)
            for kind, found in ((EMAIL, kept), (PHONE, numbers))
            if (pii := found.get(name))
        ]
        nodes = tuple(sorted({node for edge in self.edges for node in edge} | set(address.values())))
        index = {node: i for i, node in enumerate(nodes)}
        edges = sorted((index[a], index[b], count) for (a, b), count in self.edges.items())
        table = np.array(edges, np.int64).reshape(-1, 3)
        kinds = tuple(kind for kind in (EMAIL, PHONE) if any(fact.kind == kind for fact in facts))
        return Mail(
            corpus=Corpus(tuple(facts), (), kinds),
            nodes=nodes,
            edges=table[:, :2].astype(np.int32),
            weights=table[:, 2].astype(np.float64),
            node_of=np.array([index.get(address.get(fact.person, ""), -1) for fact in facts], np.int32),
            messages=self.messages,
            skipped=dict(self.skipped),
        )


def _without_lead(text: str) -> str:
    words = text.split()
    while words and (words[0] in _NO_NAME or not words[0][0].isupper()):
        words.pop(0)
    return " ".join(words)


def _below(domain: str, exclude: tuple[str, ...]) -> bool:
    return any(domain == other or domain.endswith(f".{other}") for other in exclude)


def _one_to_one(counts: Counter[tuple[str, str]]) -> dict[str, str]:
    """The most frequent pairs, each name and each value once."""
    chosen: dict[str, str] = {}
    taken: set[str] = set()
    for name, value in sorted(counts, key=lambda pair: (-counts[pair], pair)):
        if name not in chosen and value not in taken:
            chosen[name] = value
            taken.add(value)
    return chosen


def _header(message: Message, field: str) -> str:
    """A header's text; encoded words are decoded where they can be."""
    raw = message.get(field)
    if raw is None:
        return ""
    text = str(raw)
    try:
        return str(make_header(decode_header(text))) if "=?" in text else text
    except (ValueError, LookupError):
        return text


def _addresses(message: Message, field: str) -> list[tuple[str, str]]:
    """(display name, address in lower case) of a header, those that are addresses."""
    found = getaddresses([_header(message, field)])
    return [(name, to.lower()) for name, to in found if re.fullmatch(_ADDRESS, to) and not _is_wrapped(to)]


def _is_wrapped(address: str) -> bool:
    """Whether Exchange has packed an address of another system into this one."""
    return address.lower().startswith("imcea")
