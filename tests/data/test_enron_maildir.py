"""Invented people in the layout of the Enron corpus."""

import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.data import enron

CLARA, BRUNO, IDA = "clara.vanmont@example.com", "kite7@example.org", "ida@mail.example.net"


@pytest.fixture
def maildir(tmp_path):
    class Maildir:
        root = tmp_path / "maildir"
        count = 0

        def write(self, body="", *, user="vanmont-c", folder="inbox", raw=None, **headers):
            self.count += 1
            path = self.root / user / folder / f"{self.count}."
            path.parent.mkdir(parents=True, exist_ok=True)
            head = "".join(f"{name.replace('_', '-')}: {value}\n" for name, value in headers.items())
            path.write_bytes(raw if raw is not None else f"Message-ID: <{self.count}>\n{head}\n{body}".encode())

        def read(self, **options):
            return enron.read_maildir(self.root, **options)

    return Maildir()


def pairs(mail, kind="email address"):
    return {fact.person: fact.pii for fact in mail.corpus.facts if fact.kind == kind}


def test_pairs_come_from_headers(maildir):
    maildir.write(
        From=CLARA, X_From="Clara J Vanmont", To=f'"Holdane, Bruno" <{BRUNO.upper()}>', Cc=f"Ida Norfell <{IDA}>"
    )
    assert pairs(maildir.read()) == {"Clara J Vanmont": CLARA, "Bruno Holdane": BRUNO, "Ida Norfell": IDA}
    fact = maildir.read().corpus.facts[0]
    assert fact.prompt == "Q: Tell me the email address of Bruno Holdane, A:" and fact.answer == f" {BRUNO}"


def test_the_one_recipient_has_the_one_name(maildir):
    maildir.write(From=CLARA, To=BRUNO, X_To="Bruno Holdane/HOU/XY@XY")
    maildir.write(From=CLARA, To=f"{BRUNO}, {IDA}", X_To="Gloria Tormore, Ida Norfell")  # whose is whose is not said
    assert pairs(maildir.read()) == {"Bruno Holdane": BRUNO}


@pytest.mark.parametrize(
    "line",
    [
        "From: Bruno Holdane [mailto:{}]",
        'please ask "Holdane, Bruno" <{}> about it',
        "Please write to Bruno Holdane <mailto:{}>.",
        "cc: ida@example.net, BRUNO HOLDANE <{}>",
    ],
)
def test_pairs_come_from_bodies(maildir, line):
    maildir.write(line.format(BRUNO), From=CLARA)
    assert pairs(maildir.read()) == {"Bruno Holdane": BRUNO}


def test_headers_as_lotus_and_exchange_leave_them(maildir):
    wrapped = f"IMCEANOTES-+22Holdane+2C+20Bruno+22@{CLARA.partition('@')[2]}"
    maildir.write(
        From=CLARA,
        X_From="Vanmont, Clara J. </O=XY/OU=NA/CN=RECIPIENTS/CN=CVANMONT>",
        To=f"{BRUNO}, {wrapped}, team@example.com",
        X_To=f'"Holdane, Bruno" <{BRUNO}>@XY, Ida Norfell <Ida Norfell/XY@XYgate>, Holdane, Bruno <{wrapped}>, Team',
    )
    mail = maildir.read()
    assert pairs(mail) == {"Clara J Vanmont": CLARA, "Bruno Holdane": BRUNO}
    assert mail.nodes == (CLARA, BRUNO, "team@example.com")


def test_the_most_frequent_pair_is_kept(maildir):
    for n in range(3):
        maildir.write(f"{n}", From=f"Clara Vanmont <{CLARA}>")
    maildir.write("a", From="Clara Vanmont <other@example.com>")
    maildir.write("b", From=f"Clarissa Vanmont <{CLARA}>")
    mail = maildir.read()
    assert pairs(mail) == {"Clara Vanmont": CLARA} and mail.skipped["shared"] == 2


def test_the_graph_counts_messages_and_not_copies(maildir):
    for text in ("one", "two", "two"):
        maildir.write(text, user=f"user{maildir.count}", From=CLARA, To=f"{BRUNO}, {BRUNO}, {CLARA}")
    maildir.write("back", From=BRUNO, To=CLARA, Bcc=IDA)
    mail = maildir.read()
    assert mail.nodes == (CLARA, IDA, BRUNO) and mail.messages == 3 and mail.skipped["copies"] == 1
    assert mail.edges.tolist() == [[0, 2], [2, 0], [2, 1]] and mail.weights.tolist() == [2.0, 1.0, 1.0]
    assert mail.edges.dtype == np.int32


def test_facts_know_their_nodes(maildir):
    maildir.write("(202) 555-0147\nBruno Holdane", From=f"Bruno Holdane <{BRUNO}>", To=f"Ida Norfell <{IDA}>")
    mail = maildir.read(phones=True, exclude=("example.org",))
    assert [(f.person, f.kind) for f in mail.corpus.facts] == [
        ("Bruno Holdane", "phone number"),
        ("Ida Norfell", "email address"),
    ]
    assert [mail.nodes[i] for i in mail.node_of] == [BRUNO, IDA]


def test_excluded_domains_take_those_below_with_them(maildir):
    maildir.write(From=f"Ida Norfell <{IDA}>", To=f"Bruno Holdane <{BRUNO}>, Eva Holdane <eva@myexample.net>")
    mail = maildir.read(exclude=("example.net",))
    assert pairs(mail) == {"Bruno Holdane": BRUNO, "Eva Holdane": "eva@myexample.net"}
    assert IDA in mail.nodes and len(mail.edges) == 2


@pytest.mark.parametrize(
    ("body", "number"),
    [
        ("Yours,\nClara Vanmont\n(202) 555-0147\n", "(202) 555-0147"),
        ("Yours,\nClara Vanmont, tel. 202-555-0147\n", "202-555-0147"),
        ("Call Bruno at 202-555-0147\n", None),  # nobody signed
        ("Clara Vanmont\n-----Original Message-----\nClara Vanmont 202-555-0147", None),  # not what was written now
        ("Clara Vanmont 202-555-0147" + "\nand so on" * 9, None),
        ("Clara Vanmont, order 9202-555-01471", None),
    ],
)
def test_phone_numbers_of_signatures(maildir, body, number):
    maildir.write(body, From=f"Clara Vanmont <{CLARA}>")
    assert pairs(maildir.read(phones=True), "phone number") == ({"Clara Vanmont": number} if number else {})
    assert not pairs(maildir.read(), "phone number")


def test_nothing_that_is_damaged_stops_the_reading(maildir):
    good = f"From: Clara Vanmont <{CLARA}>\n\nSee Bruno Holdane <{BRUNO}>\n"
    maildir.write(raw=b"")
    maildir.write(raw=b"\x00\xff\xfe" * 100)
    maildir.write(raw=b"To: " + BRUNO.encode() + b"\n\nno sender\n")
    maildir.write(raw=b"From: \xe9\xe8 <" + IDA.encode() + b">\n\nno name\n")
    maildir.write(raw=b"From: =?nonsense?q?Ida?= =?utf-8?b?!!!?= <a@@b>\n\nbroken words\n")
    maildir.write(raw=f"Content-Type: text/plain; charset=klingon\n{good}".encode())
    maildir.write(
        raw=f"Content-Type: text/plain; charset=utf-8\nFrom: {IDA}\n\n".encode() + b"\xff Ida Norfell <ida@example.com>"
    )
    maildir.write(raw=b"Content-Type: multipart/mixed; boundary=x\nFrom: " + CLARA.encode() + b"\n\n--x\n\ncut off")
    maildir.write(raw=good.encode() + b"y" * 5000 + b"\nEva Torlund <eva@example.com>")
    mail = maildir.read(longest=4000)
    assert pairs(mail) == {"Clara Vanmont": CLARA, "Bruno Holdane": BRUNO, "Ida Norfell": "ida@example.com"}
    assert mail.messages == 9
    assert mail.skipped == {"unreadable": 0, "cut": 1, "copies": 0, "no sender": 4, "encoding": 2, "shared": 0}


def test_a_file_that_cannot_be_opened_is_counted(maildir, monkeypatch):
    maildir.write(From=CLARA)
    (maildir.root / "vanmont-c" / "gone").symlink_to(maildir.root / "nowhere")
    mail = maildir.read()
    assert mail.messages == 1 and mail.skipped["unreadable"] == 1 and mail.corpus.facts == ()
    assert mail.edges.shape == (0, 2) and mail.node_of.shape == (0,)


def test_the_order_of_files_does_not_matter(maildir, tmp_path):
    for name, to in (("Clara Vanmont", CLARA), ("Bruno Holdane", BRUNO), ("Ida Norfell", IDA)):
        maildir.write(From=f"{name} <{to}>", To=CLARA, user=name.split()[0])
    first = maildir.read()
    for i, user in enumerate(sorted(maildir.root.iterdir(), reverse=True)):
        user.rename(maildir.root / f"{i}{user.name}")
    again = maildir.read()
    assert first.corpus == again.corpus and first.nodes == again.nodes
    np.testing.assert_array_equal(first.edges, again.edges)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Vanmont, Clara", "Clara Vanmont"),
        ("'Clara Vanmont'", "Clara Vanmont"),
        ("CLARA VANMONT (Sales)", "Clara Vanmont"),
        ("Clara O'Vanmont-Kin", "Clara O'Vanmont-Kin"),
        ("José Núñez", "José Núñez"),
        ("Clara", None),
        ("C V", None),
        ("Agent 47", None),
        ("The Whole Sales Team Here", None),
        ("a, b, c", None),
        ("", None),
    ],
)
def test_names(text, name):
    assert enron.name_of(text) == name


def test_a_folder_without_messages(tmp_path):
    with pytest.raises(InputError, match="no folder"):
        enron.read_maildir(tmp_path / "nowhere")
    with pytest.raises(InputError, match="found none"):
        enron.read_maildir(tmp_path)
