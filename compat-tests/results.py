#!/usr/bin/env python3
"""Gathers what the suites' own test runners reported, and adds it up.

    results.py collect --client NAME (--junit FILE... | --gotest FILE)   lines `client<TAB>case<TAB>result<TAB>note`
    results.py summary FILE            what failed, then `N passed, N failed, N skipped`; exit 1 if any failed
    results.py matrix --target T FILE README   writes the table client x case of that target

`collect` holds the cases against the list in cases.md: one that did not run counts as failed, so that a
suite cannot shrink unnoticed. A case that a client cannot take part in is skipped with the reason as its note.
"""

import argparse
import json
import os
import pathlib
import re
import sys
import xml.etree.ElementTree as xml

HERE = pathlib.Path(__file__).resolve().parent


def cases():
    """The cases of the shared list that this run is about, in order; then those that it is not about."""
    one, three = (re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) for part in
                  (HERE / "cases.md").read_text().split("## With three nodes"))
    if os.environ.get("FAILOVER"):
        return three, one
    return (one + three, []) if os.environ.get("NODES") == "3" else (one, three)


def case_name(name):
    """test_txn_commit, txnCommit and TestTxnCommit are the case txn_commit."""
    name = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name.split("(")[0].split("/")[0]).lower()
    return name.removeprefix("test_")


def junit(files):
    for file in files:
        for case in xml.parse(file).iter("testcase"):
            bad = [part for part in case if part.tag in ("failure", "error")]
            skipped = case.find("skipped")
            note = (bad[0] if bad else skipped if skipped is not None else case).get("message") or ""
            result = "fail" if bad else "skip" if skipped is not None else "pass"
            yield case_name(case.get("name")), result, note


def gotest(file):
    words = {"pass": "pass", "fail": "fail", "skip": "skip"}
    output = {}
    for line in pathlib.Path(file).read_text().splitlines():
        if not line.startswith("{"):
            continue
        event = json.loads(line)
        test = event.get("Test")
        if not test or "/" in test:
            continue
        if event["Action"] == "output":
            output.setdefault(test, []).append(event["Output"])
        elif event["Action"] in words:
            said = [text for text in output.get(test, []) if not text.startswith(("===", "---"))]
            yield case_name(test), words[event["Action"]], "".join(said) if event["Action"] != "pass" else ""


def collect(options):
    found = {}
    for name, result, note in gotest(options.gotest) if options.gotest else junit(options.junit):
        found[name] = (result, " ".join(note.split())[:300])
    only = os.environ.get("CASE")
    listed, elsewhere = cases()
    wanted = [only] if only else listed
    # A runner may report the cases that it was told to leave out.
    more = [name for name in found if name not in wanted + elsewhere and not only]
    for name in wanted + more:
        result, note = found.get(name, ("fail", "did not run"))
        print(options.client, name, result, note, sep="\t")


def rows(file):
    """Lines of four words; a suite that passes may leave the note out."""
    return [(line.split("\t") + [""])[:4] for line in pathlib.Path(file).read_text().splitlines()]


def tally(lines):
    return [sum(line[2] == word for line in lines) for word in ("pass", "fail", "skip")]


def summary(options):
    lines = rows(options.results)
    for client, name, result, note in lines:
        if result != "pass":
            print(f"{result}: {client}: {name}: {note}")
    for client in dict.fromkeys(line[0] for line in lines):
        counts = tally([line for line in lines if line[0] == client])
        print("{}: {} passed, {} failed, {} skipped".format(client, *counts))
    passed, failed, skipped = tally(lines)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


def matrix(options):
    lines = rows(options.results)
    clients = list(dict.fromkeys(line[0] for line in lines))
    result = {(line[0], line[1]): line[2] for line in lines}
    table = ["| case | " + " | ".join(clients) + " |", "|" + " --- |" * (len(clients) + 1)]
    words = {"skip": "n/a"}
    for name in dict.fromkeys(cases()[0] + [line[1] for line in lines]):
        told = [result.get((client, name), "") for client in clients]
        table.append(f"| `{name}` | " + " | ".join(words.get(word, word) for word in told) + " |")
    begin, end = f"<!-- matrix {options.target} -->", f"<!-- end {options.target} -->"
    text = options.readme.read_text()
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    options.readme.write_text(f"{before}{begin}\n" + "\n".join(table) + f"\n{end}{after}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("collect")
    one.add_argument("--client", required=True)
    one.add_argument("--junit", nargs="*", default=[])
    one.add_argument("--gotest")
    one.set_defaults(run=collect)
    one = commands.add_parser("summary")
    one.add_argument("results")
    one.set_defaults(run=summary)
    one = commands.add_parser("matrix")
    one.add_argument("--target", required=True)
    one.add_argument("results")
    one.add_argument("readme", type=pathlib.Path)
    one.set_defaults(run=matrix)
    options = parser.parse_args()
    sys.exit(options.run(options))


if __name__ == "__main__":
    main()
