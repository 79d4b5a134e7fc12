#!/usr/bin/env python3
"""Whole-model goldens: runs cl-decode and compares what it computes with the
reference results in data/ (see data/README.md for what they are and for the
limits). Owns no reference number and no limit of its own.

    run_goldens.py --bin DIR --model FILE --device D [--kv f16|f32] [--exact]
                   [--deterministic 0|1] [--only NAME]... [--quick] [--nll] [--json OUT]

DIR is the folder with the program cl-decode. One line per check; the last line
is "N passed, N failed, N skipped", and the exit status 0 only with no failure.
"""
import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "data")
GOLDEN_FILES = ("smollm2-135m-instruct-q4_1.json", "gemma-3-270m-q4_k_m.json")
WIDTH = {"SmolLM2-135M-Instruct.Q4_1.gguf": 576, "gemma-3-270m-q4_k_m.gguf": 640}
SUPPORTED = ("llama", "gemma3")

# data/README.md, "Sensible limits"; nll of float16 and its kin in percent.
# one_pass: how far one pass may be from step by step (README: the float32 row;
# a rounding of K or V to float16 may fall to either side, so its row is wider).
LIMITS = {
    "f32": {"logit": 0.001, "mean": 0.0005, "nll": 0.01, "trace": 1e-3, "one_pass": 0.001},
    "f16": {"logit": 0.06, "mean": 0.03, "nll": 0.05, "trace": 2e-2, "one_pass": 0.06},
    "q8": {"logit": 0.4, "mean": 0.4, "nll": 0.3, "trace": 1e-1, "one_pass": 0.4},
}
Q8_MARGIN = 0.6  # with 8-bit activations only wider margins bind
# Gemma's window shows in the logits of two cases, see data/README.md.
QUICK = {"llama": ("short-english", "exact-17", "chat-system"),
         "gemma3": ("short-english", "exact-512", "exact-513")}
# Goldens without a near tie, so that every variation must give all 48 ids;
# they cross block boundaries while decoding and while prefilling.
PAGING = {"llama": ("exact-31", "chat-multi-turn"), "gemma3": ("exact-31", "exact-33")}
# The smallest buffer splits the embedding, and for Llama the K/V planes and the
# logits too; of Gemma's logits one row alone takes 1 MiB.
SMALLEST = {"llama": 1 << 20, "gemma3": 8 << 20}
VARIATIONS = (
    ("shuffled blocks, seed 1", ("--shuffle-blocks", "1"), {}),
    ("shuffled blocks, seed 20240229", ("--shuffle-blocks", "20240229"), {}),
    ("blocks of 1", ("--block", "1"), {}),
    ("blocks of 4", ("--block", "4"), {}),
    ("blocks of 4, shuffled", ("--block", "4", "--shuffle-blocks", "3"), {}),
    ("blocks of 16", ("--block", "16"), {}),
    ("blocks of 32", ("--block", "32"), {}),
    ("prompt in steps of 7", ("--max-tok", "7"), {}),
    ("prompt in steps of 1", ("--max-tok", "1"), {}),
    ("largest buffer 64 MiB", (), {"FOLIO_MAX_ALLOC": "67108864"}),
)


class Failed(Exception):
    """A check did not hold; its text says why."""


class Report:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.rows = []

    def line(self, word, name, text, seconds=None):
        took = "" if seconds is None else "  [%.1f s]" % seconds
        print("%-4s %s: %s%s" % (word, name, text, took), flush=True)
        self.rows.append({"result": word, "name": name, "text": text, "seconds": seconds})

    def check(self, name, fn, *args):
        start = time.monotonic()
        try:
            text = fn(*args)
        except Failed as e:
            self.failed += 1
            self.line("FAIL", name, str(e), time.monotonic() - start)
            return
        self.passed += 1
        self.line("ok", name, text, time.monotonic() - start)

    def skip(self, name, why):
        self.skipped += 1
        self.line("skip", name, why)


def join(ids):
    return ",".join(str(i) for i in ids)


class Decoder:
    """Calls cl-decode and gives its JSON object; the same call only once."""

    def __init__(self, args):
        self.program = os.path.join(args.bin, "cl-decode")
        self.model = args.model
        self.compute = ["--device", args.device]
        if args.deterministic is not None:
            self.compute += ["--deterministic", args.deterministic]
        if args.kv:
            self.compute += ["--kv", args.kv]
        if args.exact:
            self.compute += ["--exact"]
        self.timeout = args.timeout
        self.arithmetic = None
        self.device = None
        self.answers = {}

    def run(self, options, compute=True, stdin=b"", env=None):
        call = (tuple(options), compute, stdin, tuple(sorted((env or {}).items())))
        if call in self.answers:
            return self.answers[call]
        cmd = [self.program, "-m", self.model, "--json", *options]
        if compute:
            cmd += self.compute
        try:
            done = subprocess.run(cmd, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  timeout=self.timeout, env={**os.environ, **(env or {})})
        except subprocess.TimeoutExpired:
            raise Failed("no end after %d s" % self.timeout)
        except OSError as e:
            raise Failed("%s: %s" % (self.program, e.strerror))
        try:
            out = json.loads(done.stdout)
        except ValueError:
            out = None
        if done.returncode != 0 or not isinstance(out, dict) or "error" in out:
            said = (out or {}).get("error") if isinstance(out, dict) else done.stdout[:200]
            raise Failed("exit %d, said %s%s" % (done.returncode, said, tail(done.stderr)))
        if compute and "--exact" not in options:
            self.see_arithmetic(out)
        if "--top-logits" not in options:  # of the whole vocabulary, asked for once
            self.answers[call] = out
        return out

    def see_arithmetic(self, out):
        kind = out.get("arithmetic")
        if kind not in LIMITS:
            raise Failed("arithmetic is %r, not one of %s" % (kind, ", ".join(LIMITS)))
        if self.arithmetic not in (None, kind):
            raise Failed("arithmetic was %s and is %s now" % (self.arithmetic, kind))
        self.arithmetic = kind
        self.device = out.get("device")

    def limit(self, what):
        return LIMITS[self.arithmetic][what]


def tail(stderr):
    text = stderr.decode("utf-8", "replace").strip()
    return "; stderr: ..." + text[-400:] if text else ""


def ids_of(out, key="ids"):
    v = out.get(key)
    if not isinstance(v, list) or not all(isinstance(i, int) for i in v):
        raise Failed("%s is not a list of integers" % key)
    return v


def same_ids(got, want, what):
    if got == want:
        return
    n = min(len(got), len(want))
    at = next((i for i in range(n) if got[i] != want[i]), n)
    raise Failed("%s: %d ids for %d, first difference at %d: %s, expected %s"
                 % (what, len(got), len(want), at, got[at:at + 4], want[at:at + 4]))


def tokenize(d, c):
    options = ["--tokenize"] + ([] if c["parse_special"] else ["--no-special"])
    got = ids_of(d.run(options, compute=False, stdin=c["prompt"].encode()))
    same_ids(got, c["prompt_ids"], "prompt")
    out = d.run(["--detokenize", "--ids", join(got)], compute=False)
    if bytes.fromhex(out["bytes_hex"]) != c["prompt"].encode() or out["text"] != c["prompt"]:
        raise Failed("the ids detokenize to %r" % out["text"][:80])
    return "%d ids, and back" % len(got)


def teacher_forced(d, c):
    """Every step's argmax, and the logit of the golden id where it shows."""
    out = d.run(["--ids", join(c["prompt_ids"]), "--force", join(c["new_ids"])])
    same_ids(ids_of(out, "prompt_ids"), c["prompt_ids"], "prompt_ids")
    steps = out["steps"]
    if len(steps) != len(c["new_ids"]):
        raise Failed("%d steps for %d forced ids" % (len(steps), len(c["new_ids"])))
    q8 = d.arithmetic == "q8"
    off, exempt = [], 0
    for i, (best, logit, second, logit2) in enumerate(steps):
        want = c["new_ids"][i]
        tie = c["margins"][i] < Q8_MARGIN if q8 else i in c["near_tie"]
        exempt += tie
        if best != want and not (tie and (q8 or best == c["runner_up_ids"][i])):
            raise Failed("step %d: argmax %d, expected %d (margin %g%s)"
                         % (i, best, want, c["margins"][i], ", a near tie" if tie else ""))
        if want in (best, second):
            off.append(abs((logit if want == best else logit2) - c["top_logits"][i]))
    worst = sum(off) / len(off) if q8 else max(off)
    if not worst <= d.limit("logit"):
        raise Failed("logit of step %d is %.6g off, limit %g" % (off.index(max(off)), worst, d.limit("logit")))
    return "argmax at %d steps (%d ties), logits off by %.2g (limit %g)" % (
        len(steps), exempt, worst, d.limit("logit"))


def free_running(d, c):
    n = len(c["new_ids"])
    out = d.run(["--ids", join(c["prompt_ids"]), "-n", str(n), "--ignore-eos"])
    ids = ids_of(out)
    if len(ids) != n or out["n_new"] != n or out["finish"] != "length":
        raise Failed("%d ids, n_new %s, finish %s" % (len(ids), out["n_new"], out["finish"]))
    upto = c["compare_steps"]
    if d.arithmetic == "q8":
        upto = next((i for i, m in enumerate(c["margins"]) if m < Q8_MARGIN), n)
    same_ids(ids[:upto], c["new_ids"][:upto], "free running")
    text = "%d ids equal" % upto
    if upto == n and out["text"] is None:
        text += " (no tokenizer, no text)"
    elif upto == n:
        if out["text_hex"] != c["new_text_hex"]:
            raise Failed("text_hex is %s, expected %s" % (out["text_hex"], c["new_text_hex"]))
        if out["text"] != bytes.fromhex(c["new_text_hex"]).decode("utf-8", "replace"):
            raise Failed("text is %r" % out["text"])
        text += ", text too"
    return text


def stops(d, c):
    """Generation ends with the first end token, which counts as an id."""
    end = c["first_eog"]
    out = d.run(["--ids", join(c["prompt_ids"]), "-n", "48"])
    same_ids(ids_of(out), c["new_ids"][:end + 1], "ids up to the end token")
    if out["finish"] != "stop":
        raise Failed("finish is %s" % out["finish"])
    return "finish stop after %d ids" % (end + 1)


def logits(d, c, n_vocab):
    out = d.run(["--ids", join(c["prompt_ids"]), "--top-logits", str(n_vocab)])
    top = out["top"]
    by_id = {i: v for i, v in top}
    if len(top) != n_vocab or len(by_id) != n_vocab:
        raise Failed("%d logits of %d ids, expected %d" % (len(top), len(by_id), n_vocab))
    if any(top[i][1] < top[i + 1][1] for i in range(n_vocab - 1)):
        raise Failed("logits are not in descending order")
    off = [abs(by_id[i] - v) for i, v in c["top10"] + c["logits"]["samples"]]
    worst = sum(off) / len(off) if d.arithmetic == "q8" else max(off)
    mean = math.fsum(by_id.values()) / n_vocab
    mean_off = abs(mean - c["logits"]["mean"])
    if not worst <= d.limit("logit"):
        raise Failed("logits are %.6g off, limit %g" % (worst, d.limit("logit")))
    if not mean_off <= d.limit("mean"):
        raise Failed("mean is %.6g off, limit %g" % (mean_off, d.limit("mean")))
    # The ends of the distribution are single logits too, which only the rows of
    # floats limit: with 8-bit activations it is the mean that is limited.
    ends = () if d.arithmetic == "q8" else (("min", top[-1][1]), ("max", top[0][1]))
    for name, got in ends:
        if not abs(got - c["logits"][name]) <= max(d.limit("logit"), 1e-4):
            raise Failed("%s is %.6g, expected %.6g" % (name, got, c["logits"][name]))
    return "26 logits off by %.2g (limit %g), mean by %.2g (limit %g)" % (
        worst, d.limit("logit"), mean_off, d.limit("mean"))


def one_pass(d, c):
    """One pass over prompt and new ids equals feeding them one by one."""
    k = len(c["new_ids"]) - 1
    ids = c["prompt_ids"] + c["new_ids"]
    step = d.run(["--ids", join(c["prompt_ids"]), "--force", join(c["new_ids"])])["steps"][k]
    top = d.run(["--ids", join(ids[:len(c["prompt_ids"]) + k]), "--top-logits", "2"])["top"]
    off = max(abs(step[1] - top[0][1]), abs(step[3] - top[1][1]))
    if [top[0][0], top[1][0]] != [step[0], step[2]] and k not in c["near_tie"]:
        raise Failed("best two %s in one pass, %s step by step" % (top, step))
    if not off <= d.limit("one_pass"):
        raise Failed("logits differ by %.6g, limit %g" % (off, d.limit("one_pass")))
    return "logits after %d ids differ by %.2g (limit %g)" % (len(c["prompt_ids"]) + k, off, d.limit("one_pass"))


def trace(d, golden, c):
    out = d.run(["--ids", join(golden["prompt_ids"]), "--trace"])
    got, want = out["points"], golden["points"]
    if [p["at"] for p in got] != [p["at"] for p in want]:
        raise Failed("points are %s" % [p["at"] for p in got])
    width = WIDTH[golden["model"]]
    worst, at = 0.0, ""
    for g, w in zip(got, want):
        unit = w["l2"] / math.sqrt(width)
        # l2 and mean are printed with 7 and 6 digits in the golden file.
        parts = [abs(g["l2"] - w["l2"]) / w["l2"], abs(g["mean"] - w["mean"]) / unit]
        if len(g["first8"]) != 8:
            raise Failed("%s: first8 has %d values" % (g["at"], len(g["first8"])))
        parts += [abs(x - y) / unit for x, y in zip(g["first8"], w["first8"])]
        if max(parts) > worst:
            worst, at = max(parts), g["at"]
        if not max(parts) <= d.limit("trace"):
            raise Failed("%s is %.3g of its scale off, limit %g: the first wrong layer"
                         % (g["at"], max(parts), d.limit("trace")))
    return "%d points, worst %.2g of its scale at %s (limit %g)" % (len(got), worst, at, d.limit("trace"))


def perplexity(d, golden, context, text):
    out = d.run(["--perplexity", os.path.join(DATA, text), "--ctx", str(context)])
    if out["n"] != golden["n_predicted"]:
        raise Failed("%d predicted, expected %d" % (out["n"], golden["n_predicted"]))
    parts = [("all", out["nll_sum"], golden["nll"])]
    if len(out["windows"]) != len(golden["windows"]):
        raise Failed("%d windows, expected %d" % (len(out["windows"]), len(golden["windows"])))
    for i, (g, w) in enumerate(zip(out["windows"], golden["windows"])):
        if g["n"] != w["n_predicted"]:
            raise Failed("window %d predicts %d, expected %d" % (i, g["n"], w["n_predicted"]))
        parts.append(("window %d" % i, g["nll"], w["nll"]))
    said = []
    for name, g, w in parts:
        off = 100.0 * abs(g - w) / w
        said.append("%s %.4g %%" % (name, off))
        if not off <= d.limit("nll"):
            raise Failed("%s: nll %.6f, expected %.6f: %.4g %% off, limit %g %%" % (name, g, w, off, d.limit("nll")))
    if not abs(out["ppl"] - math.exp(out["nll_sum"] / out["n"])) <= 1e-6 * out["ppl"]:
        raise Failed("ppl %.9g is not exp(nll_sum / n)" % out["ppl"])
    return "nll off by %s (limit %g %%), perplexity %.4f" % (", ".join(said), d.limit("nll"), out["ppl"])


def varied(d, c, options, env, base):
    n = len(c["new_ids"])
    out = d.run(["--ids", join(c["prompt_ids"]), "-n", str(n), "--ignore-eos", *options], env=env)
    same_ids(ids_of(out), base, "against the usual paging")
    return "%d ids equal" % n


def paging(report, d, c, variations):
    """The way the cache is laid out must not show in the ids.

    A GPU takes 8-bit products for few tokens and others for many, so how a
    prompt is cut shows there, as it should: the layout is judged in floats."""
    n = len(c["new_ids"])
    exact = ("--exact",) if d.arithmetic == "q8" and d.device != "host" else ()
    variations = [(name, (*options, *exact), env) for name, options, env in variations]
    try:
        base = ids_of(d.run(["--ids", join(c["prompt_ids"]), "-n", str(n), "--ignore-eos", *exact]))
    except Failed as e:
        report.check("%s paging" % c["name"], raise_it, e)
        return
    for name, options, env in variations:
        report.check("%s, %s" % (c["name"], name), varied, d, c, options, env, base)


def raise_it(e):
    raise e


def file_is_the_one(path, golden):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        for part in iter(lambda: f.read(1 << 20), b""):
            h.update(part)
    if h.hexdigest() != golden["sha256"]:
        raise Failed("SHA-256 of %s is not that of %s" % (path, golden["model"]))
    return golden["model"]


def load(name):
    with open(os.path.join(DATA, name), encoding="utf-8") as f:
        return json.load(f)


def has_tokenizer(d):
    """False where this build refuses the file's kind of tokenizer by name."""
    try:
        d.run(["--tokenize"], compute=False, stdin=b"a")
    except Failed as e:
        if "UNSUPPORTED" in str(e) and "tokenizer.ggml.model" in str(e):
            return False
    return True


def run_model(report, d, golden, args):
    report.check("model file", file_is_the_one, args.model, golden)
    if report.failed:
        return
    arch = golden["architecture"]
    wanted = args.only or (QUICK[arch] if args.quick else None)
    cases = [c for c in golden["cases"] if not wanted or c["name"] in wanted]
    text = has_tokenizer(d)
    for c in cases:
        name = c["name"]
        if text:
            report.check(name + " tokens", tokenize, d, c)
        else:
            report.skip(name + " tokens", "this kind of tokenizer is not supported yet")
        report.check(name + " teacher-forced", teacher_forced, d, c)
        report.check(name + " free-running", free_running, d, c)
        report.check(name + " logits", logits, d, c, golden["n_vocab"])
        if c["first_eog"] is not None and c["first_eog"] < c["compare_steps"] and d.arithmetic != "q8" and text:
            report.check(name + " end token", stops, d, c)
    by_name = {c["name"]: c for c in golden["cases"]}
    if not args.only:
        report.check("exact-33 one pass", one_pass, d, by_name["exact-33"])
    for t in load("trace.json")["traces"]:
        if t["model"] == golden["model"] and (not args.only or t["case"] in args.only):
            report.check(t["case"] + " trace", trace, d, t, by_name[t["case"]])
    if (args.nll or not args.quick) and not args.only and text:
        p = load("perplexity.json")
        for m in p["models"]:
            if m["model"] == golden["model"]:
                report.check("perplexity", perplexity, d, m, p["context"], p["text"])
    if not args.only:
        smallest = ("largest buffer %d MiB" % (SMALLEST[arch] >> 20), (),
                    {"FOLIO_MAX_ALLOC": str(SMALLEST[arch])})
        for name in PAGING[arch][:1] if args.quick else PAGING[arch]:
            paging(report, d, by_name[name], VARIATIONS + (smallest,))


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--bin", required=True, help="folder with cl-decode")
    a.add_argument("--model", required=True, help="the model file")
    a.add_argument("--device", required=True, help="as cl-decode --device")
    a.add_argument("--kv", choices=("f16", "f32"))
    a.add_argument("--exact", action="store_true")
    a.add_argument("--deterministic", choices=("0", "1"), help="default: the device's own")
    a.add_argument("--only", action="append", metavar="NAME", help="this case only; repeatable")
    a.add_argument("--quick", action="store_true", help="three cases, no perplexity")
    a.add_argument("--nll", action="store_true", help="the perplexity in --quick too")
    a.add_argument("--json", metavar="OUT", help="write all results there")
    a.add_argument("--timeout", type=int, default=900, metavar="S", help="of one call; default 900")
    args = a.parse_args()
    report = Report()
    d = Decoder(args)
    goldens = [load(f) for f in GOLDEN_FILES]
    golden = next((g for g in goldens if g["model"] == os.path.basename(args.model)), goldens[0])
    known = {c["name"] for c in golden["cases"]}
    for name in args.only or ():
        if name not in known:
            a.error("no case %s; there are %s" % (name, ", ".join(sorted(known))))
    if golden["architecture"] in SUPPORTED:
        run_model(report, d, golden, args)
    else:
        report.skip(golden["model"], "architecture %s is not supported yet" % golden["architecture"])
    print("device %s, arithmetic %s" % (d.device, d.arithmetic))
    print("%d passed, %d failed, %d skipped" % (report.passed, report.failed, report.skipped))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"model": golden["model"], "device": d.device, "arithmetic": d.arithmetic,
                       "passed": report.passed, "failed": report.failed, "skipped": report.skipped,
                       "checks": report.rows}, f, indent=1)
            f.write("\n")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
