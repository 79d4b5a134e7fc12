#!/usr/bin/env python3
"""How long streams wait while a long prompt is computed beside them.

Runs cl-decode three times: the prompt alone, then a few streams with the prompt
arriving among them, and prints the worst gap between two steps while the prompt
is computed against the median gap of steps that only decode, and the prompt's
speed against its speed alone. Exit status 1 if --worst or --share is missed.

    tests/bench/stream_gap.py build/release [--device host] [--streams 4]
        [--prompt 4096] [--worst 2.5] [--share .5] [-- more options]
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile


def run(args, lines, folder, name):
    """The steps of a run: [begin_s, end_s, positions, rows]."""
    requests = os.path.join(folder, name + ".jsonl")
    trace = os.path.join(folder, name + ".trace")
    with open(requests, "w") as f:
        for line in lines:
            f.write(json.dumps(line) + "\n")
    cmd = [os.path.join(args.build, "tools", "cl-decode"), "--device",
           args.device, "--requests", requests, "--trace-file", trace,
           "--ctx", str(args.ctx), "--n-blocks",
           str((args.ctx + args.streams * 2048) // 16 + 64),
           "--max-seqs", str(args.streams + 1)] + args.more
    done = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode:
        sys.exit(done.stderr.decode() + " ".join(cmd) + ": exit status %d" %
                 done.returncode)
    results = [json.loads(x) for x in done.stdout.splitlines()]
    for r in results:
        if "error" in r:
            sys.exit("request %s: %s" % (r["id"], r["error"]))
    spans = {}
    for e in json.load(open(trace))["traceEvents"]:
        if e.get("ph") != "X":
            continue
        a = e["args"]
        s = spans.setdefault(a["step"], [e["ts"], 0, a["tok"], a["seq"],
                                         a["rows"]])
        s[0] = min(s[0], e["ts"])
        s[1] = max(s[1], e["ts"] + e["dur"])
    return [spans[k] for k in sorted(spans)], {r["id"]: r for r in results}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("build")
    p.add_argument("--device", default="host")
    p.add_argument("--streams", type=int, default=4)
    p.add_argument("--prompt", type=int, default=4096)
    p.add_argument("--worst", type=float, default=0)
    p.add_argument("--share", type=float, default=0)
    p.add_argument("more", nargs="*")
    args = p.parse_args()
    args.ctx = args.prompt + 64
    rng = random.Random(1)
    ids = [rng.randrange(1000, 40000) for _ in range(args.prompt)]
    # Ids that end a text may come out: the streams shall go on all the same.
    prompt = {"id": "prompt", "prompt_ids": ids, "n_predict": 1,
              "ignore_eos": True}
    with tempfile.TemporaryDirectory() as folder:
        steps, _ = run(args, [prompt], folder, "alone")
        alone = sum(s[1] - s[0] for s in steps) / 1e6
        # The prompt comes when the streams have been going for a while, and
        # they go on until it is through.
        n = 2000
        lines = [{"id": "s%d" % i, "prompt_ids": ids[i * 8:i * 8 + 8],
                  "n_predict": n, "ignore_eos": True}
                 for i in range(args.streams)]
        lines.append(dict(prompt, arrive_ms=2000.0))
        for i in range(args.streams):
            lines[i]["cancel_ms"] = 2000.0 + 1e3 * (4 * alone + 4)
        steps, res = run(args, lines, folder, "mixed")
    # A piece may be one position: only the sequences tell such a step apart.
    mixed = [i for i, s in enumerate(steps) if s[3] > args.streams]
    if not mixed:
        sys.exit("no step had both")
    first, last = mixed[0], mixed[-1]
    ends = [s[1] for s in steps]
    gaps = [(b - a) / 1e6 for a, b in zip(ends, ends[1:])]
    pure = sorted(gaps[i - 1] for i in range(1, len(steps))
                  if i < first and steps[i][2] == steps[i][3] == args.streams)
    if len(pure) < 10:
        sys.exit("only %d steps of the streams alone" % len(pure))
    median = pure[len(pure) // 2]
    worst = max(gaps[i - 1] for i in range(first, last + 1))
    took = (ends[last] - ends[first - 1]) / 1e6
    print("device %s, %d streams, a prompt of %d ids" %
          (args.device, args.streams, args.prompt))
    print("streams alone: median gap %.2f ms over %d steps" %
          (median * 1e3, len(pure)))
    print("with the prompt: worst gap %.2f ms = %.2f medians, over %d steps" %
          (worst * 1e3, worst / median, last - first + 1))
    print("prompt: alone %.2f s (%.0f ids/s), among streams %.2f s (%.0f "
          "ids/s) = %.2f of its speed" %
          (alone, args.prompt / alone, took, args.prompt / took, alone / took))
    missed = (args.worst and worst > args.worst * median) or \
        (args.share and alone / took < args.share)
    sys.exit(1 if missed else 0)


main()
