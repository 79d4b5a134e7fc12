#!/usr/bin/env python3
"""Writes covering.def, the cases of folio-check: all pairs of the values that
each op can meet, plus named cases. usage: make_covering.py > covering.def

A program costs a second of compiling, so values that programs are built from
are paired in as few combinations as possible, and each combination is then met
with several values of those that are passed at run time. Attention and linear
have several variants; `pick` says which of them runs a case (the end of its
name, or all), and is paired like any other value; where a device cannot have
that variant, the floor runs the case. The harness counts
the programs of a run. Same output on every machine: no random module."""

import itertools

SEED = 1


def rand(n):
    """Multiplicative congruential (Lehmer), good enough to break ties."""
    global SEED
    SEED = SEED * 48271 % 2147483647
    return SEED % n


def emit(macro, *values):
    print(f"CHECK_{macro}({', '.join(str(v) for v in values)})")


class Cover:
    """Pairs of factor values met so far."""

    def __init__(self, factors):
        self.factors = factors  # name -> values
        self.names = list(factors)
        self.cost = {}  # a value that should be taken only where it is needed
        self.left = {
            (a, x, b, y)
            for a, b in itertools.combinations(self.names, 2)
            for x in factors[a] for y in factors[b]
        }

    def pairs(self, row):
        for a, b in itertools.combinations(self.names, 2):
            if a in row and b in row:
                yield (a, row[a], b, row[b])

    def gain(self, row):
        return sum(p in self.left for p in self.pairs(row))

    def add(self, row):
        self.left.difference_update(self.pairs(row))

    def complete(self, row):
        """Fills the missing factors of row, each with the best value."""
        row = dict(row)
        for name in sorted(self.names, key=lambda n: -len(self.factors[n])):
            if name in row:
                continue
            best = max(self.factors[name], key=lambda v: (
                self.gain({**row, name: v}) - self.cost.get(v, 0), rand(1000)))
            row[name] = best
        return row

    def best(self, fixed, tries=30):
        rows = []
        for _ in range(tries):
            row = dict(fixed)
            # Start from a pair that is still missing, if one fits.
            left = [p for p in sorted(self.left, key=str)
                    if row.get(p[0], p[1]) == p[1] and
                    row.get(p[2], p[3]) == p[3]]
            if left:
                a, x, b, y = left[rand(len(left))]
                row.update({a: x, b: y})
            row = self.complete(row)
            rows.append((self.gain(row), -len(rows), row))
        return max(rows)[2]


# ---- attention --------------------------------------------------------------

HD = [4, 64, 80, 96, 112, 128, 256]
G = [1, 3, 4, 7, 8, 9, 16]
BS = [1, 4, 16, 32]
LAYOUT = ["1, 0", "8, 0", "8, 8", "0, 0"]  # Xk, Xv; 0 = HD
YV = [1, 2]
KV = ["F32", "F16"]
CAP = [0, 30]
PICK = ["cpu", "tile", "split", "item"]
CTX = [0, 1, 15, 16, 17, 127, 128, 129, 1000, 4097]
BATCH = [1, 3, 33]
WINDOW = [0, 1, 16, 100]
MODE = ["DECODE", "PREFILL", "CHUNK", "MIXED"]
DET = [0, 1]
CHUNK = [0, 16, 128]


def attn(set_, row, segs=1, fill="plain"):
    emit("ATTN", set_, row["pick"], row["hd"], row["g"], row["kvh"], row["bs"],
         row["layout"], row["yv"], row["kv"], row["mode"], row["ctx"],
         row["batch"], row["window"], row["cap"], row["det"], row["chunk"],
         segs, fill)


def attention():
    program = {"hd": HD, "g": G, "bs": BS, "layout": LAYOUT, "yv": YV,
               "kv": KV, "cap": CAP, "pick": PICK}
    run = {"ctx": CTX, "batch": BATCH, "window": WINDOW, "mode": MODE,
           "det": DET, "chunk": CHUNK}
    # Two sets of programs that every variant builds, for the named cases.
    a = {"pick": "all", "hd": 64, "g": 3, "kvh": 2, "bs": 16, "layout": "8, 8",
         "yv": 1, "kv": "F16", "cap": 0, "window": 0, "det": 1, "chunk": 0,
         "batch": 3, "mode": "MIXED", "ctx": 33}
    b = {**a, "hd": 4, "g": 9, "kvh": 1, "bs": 4, "layout": "1, 0", "yv": 2,
         "kv": "F32", "cap": 30}

    cover = Cover(program)
    cover.cost = {"tile": 2}  # it builds two
    for row, pick in itertools.product([a, b], PICK):
        cover.add({**{k: row[k] for k in program}, "pick": pick})
    programs = []
    for hd, g in itertools.product(HD, G):
        if (hd, g) in [(a["hd"], a["g"]), (b["hd"], b["g"])]:
            continue
        row = cover.best({"hd": hd, "g": g})
        cover.add(row)
        programs.append(row)
    assert not cover.left, cover.left

    cover = Cover({**program, **run})
    for row in programs:
        cover.add(row)
    for row, pick in itertools.product([a, b], PICK):
        cover.add({**{k: row[k] for k in program}, "pick": pick})
    rows = []
    while cover.left or len(rows) < len(programs):
        n = len(rows)
        if n < len(programs):
            fixed = programs[n]
        else:
            fixed = max(programs, key=lambda r: (
                cover.gain(cover.complete(r)), rand(1000)))
        row = cover.best(fixed, 8)
        # A sequence without keys alone makes no work: give it company.
        cover.add(row)
        if row["ctx"] == 0 and row["batch"] == 1:
            row = {**row, "batch": 3}
        row["kvh"] = 1 + HD.index(row["hd"]) % 2 if row["g"] < 16 else 1
        rows.append(row)
    for row in rows:
        attn("L", row)

    # What bulk copies and matrix units take: halves in the order (8, 1).
    mma = {"hd": [64, 80, 96, 112, 128, 256], "g": [1, 3, 4, 7, 8, 9, 16],
           "bs": [16, 32], "cap": [0, 30], "pick": ["bulk", "mma"]}
    fast = {"ctx": [1, 15, 16, 17, 127, 128, 129, 1000], "batch": [1, 3, 33],
            "window": [0, 1, 16, 100], "mode": MODE, "chunk": CHUNK}
    cover = Cover({**mma, **fast})
    cover.left = {p for p in cover.left
                  if p[0] in fast or p[2] in fast or "pick" in (p[0], p[2])}
    programs = [({"hd": hd, "g": g, "bs": bs, "cap": cap, "pick": pick}, kvh,
                 segs)
                for pick in mma["pick"]
                for hd, g, bs, cap, kvh, segs in [
                    (64, 4, 16, 0, 2, 4 if pick == "bulk" else 2),
                    (80, 7, 32, 30, 1, 1), (112, 1, 16, 0, 3, 1),
                    (128, 9 if pick == "bulk" else 16, 16, 0, 1, 1),
                    (256, 3, 32, 0, 2, 1)]]
    for i in range(50):
        row, kvh, segs = programs[i % len(programs)]
        row = cover.best(row, 8)
        cover.add(row)
        attn("L", {**row, "layout": "8, 8", "yv": 1, "kv": "F16", "det": 0,
                   "kvh": kvh}, segs=segs)
    attn("S", a)
    attn("S", {**a, "mode": "DECODE", "ctx": 17, "batch": 1, "det": 0})
    attn("S", {**a, "mode": "PREFILL", "ctx": 17, "window": 5})
    attn("S", b, segs=4)
    attn("S", {**b, "mode": "CHUNK", "ctx": 16, "window": 3, "det": 0}, segs=4)
    for fill in ["zero", "equal", "low", "peak", "tiny"]:
        attn("L", {**a, "ctx": 129}, fill=fill)
        attn("L", {**a, "ctx": 300, "mode": "DECODE", "det": 0, "chunk": 16,
                   "batch": 1}, fill=fill)
    # One, two and many pieces; a window that starts inside a block and a piece.
    for chunk in [16, 32, 512]:
        for window in [0, 300]:
            attn("L", {**a, "mode": "DECODE", "ctx": 513, "batch": 1, "det": 0,
                       "chunk": chunk, "window": window})
    # Whole prompts around a tile's edges.
    for ctx in [7, 8, 9, 31, 32, 33, 64, 65, 200]:
        attn("L", {**a, "mode": "PREFILL", "ctx": ctx, "batch": 1})
    # Pools in several buffers.
    attn("L", {**a, "ctx": 129, "kvh": 1, "pick": "tile"}, segs=2)
    attn("L", {**a, "ctx": 129, "kvh": 1, "pick": "split"}, segs=4)
    attn("L", {**a, "ctx": 129, "kvh": 1, "pick": "cpu"}, segs=4)


# ---- linear, embed ----------------------------------------------------------

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K",
         "Q5_K", "Q6_K", "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
PLAIN = ["F32", "F16", "BF16"]


def blocks(t):
    return 1 if t in PLAIN else 256 if t.endswith("K") or t == "IQ4_XS" else 32


def linear():
    run = {"rows": [1, 5, 33, 130], "cols": [1, 2, 3], "xpad": [0, 3],
           "ypad": [0, 5], "bias": [0, 1], "acc": [0, 1], "views": [1, 2, 4]}
    cover = Cover(run)
    odd = {1: [1, 67, 300], 32: [32, 96, 352], 256: [256, 768, 512]}

    def one(set_, pick, t, tok, fill="plain", **fixed):
        row = cover.best(fixed)
        cover.add(row)
        # No more views than rows.
        row["views"] = min(row["views"], row["rows"])
        emit("LINEAR", set_, pick, t, row["rows"],
             odd[blocks(t)][row["cols"] - 1], tok, row["xpad"], row["ypad"],
             row["bias"], row["acc"], row["views"], fill)

    # Everything every variant does, on one type.
    for tok in [1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 65]:
        one("L", "all", "Q4_0", tok)
    for fill in ["tiny", "zero", "cancel"]:
        one("L", "all", "Q4_0", 9, fill, rows=33)
    one("S", "all", "Q4_0", 1, rows=33)
    one("S", "all", "Q4_0", 9, rows=5)
    # All types at the floor, and each by one more variant.
    for i, t in enumerate(TYPES):
        one("L", "item", t, 2)
        one("L", "item", t, 1, "tiny")
        if t in ["Q4_0", "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS"]:
            continue
        pick = ("tile" if t in ["F32", "Q6_K"] else
                ["cpu", "wg"][i % 2])
        tok = 17 if pick == "tile" else 3 if i % 5 == 1 else 1
        for n in range(3):
            one("L", pick, t, tok, "tiny" if n == 2 else "plain")
        if pick == "tile":
            one("L", pick, t, 33)
    one("S", "item", "F32", 2, rows=5)
    one("S", "item", "Q6_K", 2, rows=5)
    one("S", "item", "MXFP4", 2, rows=5)
    while cover.left:
        one("L", "all", "Q4_0", [2, 9][rand(2)])


# Packings and the types that each takes.
PACKED = [("RG16", "F16"), ("RG16", "Q8_0"), ("RG16", "Q4_0"),
          ("RG16", "Q4_1"), ("TILE16", "F16")]


def packed():
    """Weights that are not in the file's order: every reader of rows, by types;
    the kernels made for a packing, by tokens as well. Columns decide how these
    are compiled: one number for each of them, others for one type."""
    run = {"rows": [1, 16, 33, 130, 300], "xpad": [0, 4], "ypad": [0, 5],
           "bias": [0, 1], "acc": [0, 1], "views": [1, 2], "tok": [1, 3, 8]}
    cover = Cover(run)

    def one(set_, pick, packing, t, cols, fill="plain", **fixed):
        row = cover.best(fixed)
        cover.add(row)
        emit("PACKED", set_, pick, t, packing, row["rows"], cols, row["tok"],
             row["xpad"], row["ypad"], row["bias"], row["acc"], row["views"],
             fill)

    for i, (packing, t) in enumerate(PACKED):
        cols = [64, 576, 192] if packing == "TILE16" else [32, 608, 1056]
        one("S" if i == 2 else "L", "item", packing, t, cols[0], tok=2)
        one("L", ["wg", "cpu", "tile"][i % 3], packing, t, cols[1],
            tok=[3, 1, 17][i % 3])
        for pick in ["gemv", "gemv_i8"]:
            if pick == "gemv_i8" and t == "F16":
                continue
            for tok in [1, 2, 3, 8]:
                one("S" if tok == 3 else "L", pick, packing, t, cols[i % 3],
                    tok=tok)
            one("L", pick, packing, t, cols[i % 3], "tiny")
            one("L", pick, packing, t, cols[i % 3], "zero")
            for n in cols:
                if t == "Q4_0" or packing == "TILE16":
                    one("L", pick, packing, t, n, tok=1)
        emit("PACKED_EMBED", "S" if i == 0 else "L", t, packing,
             [40, 130, 7][i % 3], [64, 192][i % 2], [1, 3, 18][i % 3],
             [1, 2][i % 2], "plain")
    while cover.left:
        one("L", ["gemv", "gemv_i8"][rand(2)], "RG16", "Q4_0", 1056)


def matrix():
    """Matrix units: every packing and type, few and many tokens (tiles of
    tokens differ), tiles cut among groups and whole ones."""
    run = {"rows": [33, 130, 270, 300], "xpad": [0, 4, 3], "ypad": [0, 5],
           "bias": [0, 1], "acc": [0, 1], "views": [1, 2]}
    cover = Cover(run)

    def one(set_, pick, packing, t, cols, tok, fill="plain"):
        row = cover.best({})
        cover.add(row)
        emit("PACKED", set_, pick, t, packing, row["rows"], cols, tok,
             row["xpad"], row["ypad"], row["bias"], row["acc"], row["views"],
             fill)

    for i, (packing, t) in enumerate(PACKED):
        for j, tok in enumerate([5, 8, 9, 33, 70]):
            set_ = "S" if (t, j) in [("F16", 0), ("Q4_0", 1)] else "L"
            one(set_, "wgmma", packing, t, [320, 128, 192, 256, 64][j], tok)
        one("L", "wgmma", packing, t, 64, 140)
        one("L", "wgmma", packing, t, 256, 20, "tiny")
    for packing in ["RAW", "RG16", "TILE16"]:
        for j, tok in enumerate([3, 9, 16, 40, 70]):
            one("S" if j == 3 else "L", "mma", packing, "F16",
                [320, 576, 64, 320, 128][j], tok)
    one("L", "mma", "RAW", "F16", 96, 17, "tiny")


def embed():
    for i, t in enumerate(TYPES):
        set_ = "S" if t in ["Q4_K", "F16"] else "L"
        if t in ["Q5_1", "IQ4_NL", "Q2_K", "Q3_K", "Q5_0", "IQ4_XS",
                 "MXFP4"]:
            continue
        cols = blocks(t) * [3, 1, 2][i % 3] if t not in PLAIN else 67 + i
        emit("EMBED", set_, t, [40, 7, 129][i % 3], cols, [1, 3, 18][i % 3],
             [2, 1, 4][i % 3], "plain")
        emit("EMBED", "L", t, 33, cols, 4, 1, "tiny")


# ---- the rest ---------------------------------------------------------------

def small_ops():
    for x_rows, rows, dim in [(1, 1, 1), (7, 3, 65), (5, 9, 576), (40, 33, 300)]:
        emit("GATHER", "S" if dim == 65 else "L", x_rows, rows, dim)

    cover = Cover({"rows": [1, 3, 33], "dim": [1, 5, 64, 257, 576, 4096],
                   "xpad": [0, 3], "opad": [0, 2], "res": [0, 1],
                   "alias": [0, 1], "fill": ["plain", "zero", "tiny", "huge"]})
    while cover.left:
        r = cover.best({})
        cover.add(r)
        emit("RMSNORM", "L", r["rows"], r["dim"], r["xpad"], r["opad"],
             r["res"], r["alias"], r["fill"])
    emit("RMSNORM", "S", 3, 300, 1, 2, 1, 0, "plain")
    emit("RMSNORM", "S", 1, 5, 0, 0, 0, 1, "plain")

    cover = Cover({"act": ["SILU", "GELU_TANH"], "tok": [1, 3, 33],
                   "dim": [1, 65, 256, 1536], "pad": ["0, 0, 0", "1, 2, 3"],
                   "alias": [0, 1, 2], "fill": ["plain", "huge"]})
    while cover.left:
        r = cover.best({})
        cover.add(r)
        emit("ACT", "L", r["act"], r["tok"], r["dim"], r["pad"], r["alias"],
             r["fill"])
    for act in ["SILU", "GELU_TANH"]:
        emit("ACT", "S", act, 3, 65, 1, 2, 3, 0, "huge")

    for n, alias, fill in [(1, 0, "plain"), (1000, 0, "plain"), (257, 1, "huge"),
                           (65537, 0, "tiny")]:
        emit("ADD", "S" if n == 1000 else "L", n, alias, fill)

    cover = Cover({"rows": [1, 3, 33], "vocab": [1, 63, 1000, 49152],
                   "k": [1, 5, 64],
                   "fill": ["plain", "zero", "equal", "low", "peak", "tiny",
                            "huge", "nan"]})
    while cover.left:
        r = cover.best({})
        cover.add(r)
        if r["vocab"] * r["rows"] > 200000:
            r["rows"] = 3
        emit("TOPK", "L", r["rows"], r["vocab"], r["k"], r["fill"])
    emit("TOPK", "S", 3, 300, 5, "nan")
    emit("TOPK", "S", 2, 70, 1, "equal")

    for set_, row in [
        ("S", "64, 4, 2, 16, 8, 8, 1, F16, 64, 0, 5, 0, 1, plain"),
        ("S", "64, 4, 2, 16, 8, 8, 1, F16, 64, 0, 5, 4, 1, tiny"),
        ("S", "8, 3, 1, 4, 1, 0, 2, F32, 4, 1, 6, 4, 4, plain"),
        ("L", "64, 9, 3, 16, 8, 0, 2, F32, 64, 1, 33, 4, 1, plain"),
        ("L", "4, 3, 1, 1, 8, 8, 1, F16, 4, 0, 9, 0, 1, plain"),
        ("L", "80, 7, 1, 32, 8, 8, 2, F16, 80, 0, 17, 4, 2, plain"),
        ("L", "112, 8, 1, 16, 1, 0, 1, F16, 112, 0, 40, 4, 4, plain"),
        ("L", "128, 9, 9, 16, 0, 0, 2, F16, 128, 0, 2, 0, 1, plain"),
        ("L", "256, 4, 1, 32, 8, 8, 1, F32, 64, 0, 1, 0, 1, plain"),
        ("L", "64, 0, 2, 16, 8, 8, 1, F16, 64, 0, 5, 4, 1, plain"),
        ("L", "64, 4, 2, 16, 8, 8, 1, F16, 0, 0, 5, 4, 1, plain"),
        ("L", "64, 4, 2, 16, 8, 8, 1, F16, 64, 0, 300, 0, 1, plain"),
    ]:
        print(f"CHECK_ROPE({set_}, {row})")

    for set_, row in [("S", "64, 2, 16, F16, 3, 1"), ("S", "8, 1, 4, F32, 3, 4"),
                      ("L", "80, 3, 32, F32, 5, 2"),
                      ("L", "128, 8, 16, F16, 33, 4")]:
        print(f"CHECK_COPY({set_}, {row})")


def sample():
    cover = Cover({"rows": [1, 4, 33], "vocab": [1, 63, 1000],
                   "edits": [0, 1, 50],
                   "fill": ["plain", "zero", "equal", "low", "peak", "huge",
                            "nan"]})
    while cover.left:
        r = cover.best({})
        cover.add(r)
        emit("SAMPLE", "L", r["rows"], r["vocab"], r["edits"], r["fill"])
    emit("SAMPLE", "L", 3, 49152, 20, "plain")
    emit("SAMPLE", "S", 4, 70, 3, "plain")
    emit("SAMPLE", "S", 3, 64, 0, "equal")


def fused():
    # One shape of each runs in several batches through the same programs. Type,
    # dim, parts, rows, tokens, x pad, y pad, bias, gather.
    for set_, pick, packing, row in [
        ("S", "all", "RAW", "Q4_0, 96, 1, 37, 1, 0, 0, 0, 0, plain"),
        ("S", "all", "RAW", "Q4_0, 96, 2, 20, 3, 3, 5, 1, 0, plain"),
        ("L", "all", "RAW", "Q4_0, 96, 3, 37, 1, 3, 5, 1, 0, plain"),
        ("L", "all", "RAW", "Q4_0, 96, 3, 1, 2, 3, 5, 0, 0, plain"),
        ("L", "cpu", "RAW", "Q4_0, 96, 2, 130, 8, 0, 0, 1, 0, plain"),
        ("L", "wg", "RAW", "Q4_0, 96, 1, 33, 5, 0, 5, 1, 1, plain"),
        ("L", "wg", "RAW", "Q4_0, 96, 1, 33, 9, 0, 0, 0, 1, tiny"),
        ("L", "all", "RAW", "Q4_0, 96, 1, 33, 4, 1, 0, 0, 0, zero"),
        ("L", "cpu", "RAW", "F16, 67, 2, 33, 1, 0, 5, 0, 0, plain"),
        ("L", "wg", "RAW", "F32, 67, 2, 33, 2, 1, 0, 1, 0, huge"),
        ("L", "wg", "RAW", "Q6_K, 256, 2, 37, 1, 0, 5, 0, 1, plain"),
        ("L", "cpu", "RAW", "Q8_0, 576, 3, 37, 1, 0, 5, 0, 1, plain"),
        ("S", "gemv", "RG16", "Q4_0, 96, 2, 37, 3, 4, 5, 1, 0, plain"),
        ("L", "gemv", "RG16", "Q4_0, 96, 3, 37, 8, 4, 5, 0, 0, plain"),
        ("L", "gemv", "RG16", "F16, 1056, 1, 130, 1, 0, 5, 1, 1, plain"),
        ("L", "gemv", "RG16", "F16, 1056, 2, 33, 2, 4, 0, 0, 0, tiny"),
        ("L", "gemv", "TILE16", "F16, 192, 3, 37, 3, 0, 0, 1, 1, plain"),
        ("L", "gemv", "RG16", "Q8_0, 608, 1, 40, 1, 0, 5, 0, 0, zero"),
        ("S", "gemv_i8", "RG16", "Q4_0, 96, 2, 37, 3, 4, 5, 1, 0, plain"),
        ("L", "gemv_i8", "RG16", "Q4_1, 608, 1, 130, 8, 0, 0, 0, 1, plain"),
        ("L", "gemv_i8", "RG16", "Q8_0, 608, 2, 40, 1, 0, 5, 0, 0, plain"),
        ("L", "wg", "RG16", "Q4_1, 96, 2, 37, 3, 0, 5, 0, 0, plain"),
        ("S", "wgmma", "TILE16", "F16, 128, 3, 270, 9, 4, 5, 1, 0, plain"),
        ("L", "wgmma", "TILE16", "F16, 128, 2, 130, 300, 3, 0, 0, 1, plain"),
        ("S", "wgmma", "RG16", "F16, 320, 3, 300, 8, 0, 5, 1, 1, plain"),
        ("L", "wgmma", "RG16", "Q4_0, 128, 2, 270, 300, 4, 0, 1, 0, plain"),
        ("L", "wgmma", "RG16", "Q4_0, 576, 3, 140, 7, 3, 0, 1, 0, plain"),
    ]:
        print(f"CHECK_NORM_LINEAR({set_}, {pick}, {packing}, {row})")
    # Types, dim; HD, H, KVH, BS, Xk, Xv, Yv, KV; rot, interleaved, head norm,
    # bias; tokens, pad, segs.
    a = "Q4_0, Q4_0, 96, 16, 4, 2, 16, 8, 8, 1, F16, 16, 0"
    for set_, pick, packing, row in [
        ("S", "all", "RAW", "Q4_0, Q4_0, 64, 8, 3, 1, 4, 1, 0, 2, F32, "
         "4, 1, 0, 1, 3, 4, 4, plain"),
        ("S", "all", "RAW", a + ", 0, 0, 1, 0, 1, plain"),
        ("L", "all", "RAW", a + ", 0, 1, 3, 4, 1, plain"),
        ("L", "wg", "RAW", a + ", 0, 1, 8, 4, 1, plain"),
        ("L", "cpu", "RAW", a + ", 0, 1, 5, 4, 1, tiny"),
        ("L", "cpu", "RAW", a + ", 0, 1, 9, 0, 1, zero"),
        ("L", "parts", "RAW", a + ", 1, 1, 3, 0, 1, plain"),
        ("L", "parts", "RAW", "Q4_0, Q8_0, 96, 16, 4, 2, 16, 8, 8, 1, F16, "
         "16, 0, 0, 1, 3, 4, 1, plain"),
        ("L", "wg", "RAW", "F16, F16, 67, 64, 9, 3, 16, 8, 8, 1, F16, "
         "64, 0, 0, 0, 1, 4, 2, plain"),
        ("L", "cpu", "RAW", "Q4_1, Q4_1, 576, 64, 9, 3, 16, 8, 0, 2, F16, "
         "64, 1, 0, 0, 1, 0, 1, plain"),
        ("L", "wg", "RAW", "Q8_0, Q8_0, 32, 256, 2, 1, 32, 8, 8, 1, F32, "
         "64, 0, 0, 1, 2, 0, 1, plain"),
        ("L", "cpu", "RAW", "Q8_0, Q8_0, 32, 80, 3, 1, 1, 1, 0, 1, F16, "
         "0, 0, 0, 1, 1, 0, 4, plain"),
        ("S", "gemv", "RG16", a + ", 0, 1, 3, 4, 1, plain"),
        ("L", "gemv", "RG16", a + ", 0, 0, 1, 0, 1, plain"),
        ("L", "gemv", "RG16", a + ", 0, 1, 8, 4, 1, tiny"),
        ("L", "gemv", "RG16", "F16, F16, 1056, 64, 9, 3, 16, 8, 8, 1, F16, "
         "64, 0, 0, 0, 1, 4, 2, plain"),
        ("L", "gemv", "TILE16", "F16, F16, 192, 128, 2, 1, 16, 8, 8, 1, F16, "
         "128, 0, 0, 1, 2, 0, 1, plain"),
        ("L", "gemv", "RG16", "Q8_0, Q8_0, 608, 80, 2, 1, 16, 8, 0, 2, F32, "
         "40, 1, 0, 1, 3, 0, 1, plain"),
        ("S", "gemv_i8", "RG16", a + ", 0, 1, 3, 4, 1, plain"),
        ("L", "gemv_i8", "RG16", "Q8_0, Q8_0, 608, 80, 2, 1, 16, 8, 0, 2, "
         "F32, 0, 0, 0, 1, 3, 0, 4, plain"),
        ("L", "gemv_i8", "RG16", "Q4_1, Q4_1, 576, 64, 9, 3, 16, 8, 8, 1, "
         "F16, 64, 0, 0, 0, 8, 4, 1, plain"),
        ("S", "wgmma", "TILE16", "F16, F16, 192, 64, 5, 1, 16, 8, 8, 1, F16, "
         "64, 1, 0, 1, 9, 4, 1, plain"),
        ("S", "wgmma", "RG16", "F16, F16, 128, 48, 4, 2, 16, 8, 8, 1, F32, "
         "16, 1, 0, 1, 7, 3, 2, plain"),
        ("L", "wgmma", "RG16", "Q8_0, Q8_0, 128, 80, 3, 1, 16, 8, 0, 2, F16, "
         "0, 0, 0, 1, 70, 4, 4, plain"),
        ("L", "wgmma", "RG16", "Q4_0, Q4_0, 64, 128, 2, 1, 16, 8, 8, 1, F16, "
         "128, 1, 0, 0, 300, 4, 1, plain"),
    ]:
        print(f"CHECK_QKV({set_}, {pick}, {packing}, {row})")
    # Types, activation, dim, rows, tokens, x pad, out pad.
    for set_, pick, packing, row in [
        ("S", "all", "RAW", "Q4_0, Q4_0, SILU, 96, 37, 3, 1, 5, plain"),
        ("S", "all", "RAW", "Q4_0, Q4_0, SILU, 96, 40, 1, 0, 0, plain"),
        ("L", "wg", "RAW", "Q4_0, Q4_0, SILU, 96, 130, 8, 1, 5, plain"),
        ("L", "all", "RAW", "Q4_0, Q4_0, SILU, 96, 1, 2, 0, 0, plain"),
        ("L", "cpu", "RAW", "Q4_0, Q4_0, SILU, 96, 33, 9, 0, 0, zero"),
        ("L", "all", "RAW", "Q4_0, Q4_0, SILU, 96, 65, 1, 0, 0, tiny"),
        ("L", "parts", "RAW", "Q4_0, Q8_0, SILU, 96, 65, 3, 3, 5, plain"),
        ("L", "wg", "RAW", "F16, F16, GELU_TANH, 67, 33, 2, 0, 3, plain"),
        ("L", "cpu", "RAW", "F32, F32, GELU_TANH, 67, 33, 1, 0, 3, plain"),
        ("L", "wg", "RAW", "Q4_K, Q4_K, SILU, 512, 33, 1, 0, 0, plain"),
        ("L", "cpu", "RAW", "Q8_0, Q8_0, SILU, 576, 33, 1, 0, 0, plain"),
        ("S", "gemv", "RG16", "Q4_0, Q4_0, SILU, 96, 37, 3, 4, 5, plain"),
        ("L", "gemv", "RG16", "Q4_0, Q4_0, SILU, 96, 130, 8, 4, 5, tiny"),
        ("L", "gemv", "RG16", "F16, F16, GELU_TANH, 1056, 33, 1, 0, 3, plain"),
        ("L", "gemv", "TILE16", "F16, F16, SILU, 192, 130, 2, 0, 3, plain"),
        ("L", "gemv", "RG16", "Q8_0, Q8_0, SILU, 608, 40, 1, 0, 3, zero"),
        ("S", "gemv_i8", "RG16", "Q4_0, Q4_0, SILU, 96, 37, 3, 4, 5, plain"),
        ("L", "gemv_i8", "RG16", "Q8_0, Q8_0, SILU, 608, 40, 1, 0, 3, plain"),
        ("L", "gemv_i8", "RG16", "Q4_1, Q4_1, GELU_TANH, 608, 33, 8, 0, 3, "
         "plain"),
        ("S", "wgmma", "TILE16", "F16, F16, SILU, 192, 270, 9, 4, 5, plain"),
        ("L", "wgmma", "TILE16", "F16, F16, GELU_TANH, 576, 130, 7, 3, 0, "
         "plain"),
        ("S", "wgmma", "RG16", "F16, F16, SILU, 128, 200, 8, 0, 5, plain"),
        ("L", "wgmma", "RG16", "Q4_0, Q4_0, SILU, 128, 270, 300, 4, 0, plain"),
        ("L", "wgmma", "RG16", "Q4_1, Q4_1, SILU, 192, 97, 40, 0, 3, plain"),
        ("L", "wgmma", "RG16", "Q8_0, Q8_0, SILU, 320, 130, 5, 0, 3, plain"),
    ]:
        print(f"CHECK_GATE_UP({set_}, {pick}, {packing}, {row})")


# ---- speed ------------------------------------------------------------------

def bench():
    # SmolLM2-135M, Llama-3.2-1B, Llama-3.1-8B: rows, cols, types.
    for rows, cols, types in [
        (1536, 576, ["Q4_1"]), (49152, 576, ["Q8_0"]),
        (2048, 2048, ["Q4_0", "F16"]), (8192, 2048, ["Q4_0", "Q8_0"]),
        (14336, 4096, ["Q4_0", "Q4_K"]),
    ]:
        for t, tok in itertools.product(types, [1, 8, 128]):
            if rows == 49152 and tok == 128:
                continue
            emit("LINEAR", "B", "all", t, rows, cols, tok, 0, 0, 0, 0, 1,
                 "plain")
    # Llama-3.2-1B and 3.1-8B: attention, feed-forward, head; as kernels for one
    # packing read them.
    for rows, cols in [(2048, 2048), (8192, 2048), (2048, 8192), (4096, 4096),
                       (14336, 4096), (4096, 14336), (128256, 2048)]:
        for packing, t in PACKED:
            if t == "Q4_1":
                continue
            emit("PACKED", "B", "all", t, packing, rows, cols, 1, 0, 0, 0, 0, 1,
                 "plain")
    # Heads, KV heads, head size: decode at several loads, then whole prompts.
    for kvh, g, hd in [(3, 3, 64), (8, 4, 64), (8, 4, 128)]:
        row = {"pick": "all", "hd": hd, "g": g, "kvh": kvh, "bs": 16,
               "layout": "8, 8", "yv": 1, "kv": "F16", "window": 0, "cap": 0,
               "det": 0, "chunk": 0}
        for ctx, batch in [(512, 1), (4096, 1), (1024, 8)]:
            attn("B", {**row, "mode": "DECODE", "ctx": ctx, "batch": batch})
        attn("B", {**row, "mode": "PREFILL", "ctx": 256, "batch": 1})
    for tok in [1, 128]:
        for dim in [576, 4096]:
            emit("RMSNORM", "B", tok, dim, 0, 0, 1, 0, "plain")
        emit("ACT", "B", "SILU", tok, 8192, "0, 0, 0", 0, "plain")
        emit("EMBED", "B", "Q4_0", 32000, 2048, tok, 1, "plain")
        print(f"CHECK_ROPE(B, 128, 32, 8, 16, 8, 8, 1, F16, 128, 0, {tok}, 0, "
              "1, plain)")
    emit("TOPK", "B", 1, 128256, 1, "plain")
    emit("TOPK", "B", 8, 128256, 40, "plain")
    emit("ADD", "B", 4096 * 128, 0, "plain")
    print("CHECK_COPY(B, 128, 8, 16, F16, 64, 1)")
    emit("GATHER", "B", 256, 8, 4096)
    # SmolLM2-135M, Llama-3.2-1B, Llama-3.1-8B: the layer's fused steps.
    for dim, ff, vocab, hd, h, kvh, types in [
        (576, 1536, 49152, 64, 9, 3, ["Q4_1"]),
        (2048, 8192, 128256, 64, 32, 8, ["F16", "Q8_0", "Q4_0"]),
        (4096, 14336, 128256, 128, 32, 8, ["F16", "Q4_0"]),
    ]:
        for t, tok in itertools.product(types, [1, 8]):
            # Packed as devices choose it; some in the order of the file.
            for p in (["RAW"] * (tok == 1 and dim < 4096) + ["RG16"] +
                      ["TILE16"] * (t == "F16" and tok == 1)):
                print(f"CHECK_QKV(B, all, {p}, {t}, {t}, {dim}, {hd}, {h}, "
                      f"{kvh}, 16, 8, 8, 1, F16, {hd}, 0, 0, 0, {tok}, 0, 1, "
                      "plain)")
                print(f"CHECK_GATE_UP(B, all, {p}, {t}, {t}, SILU, {dim}, "
                      f"{ff}, {tok}, 0, 0, plain)")
                if tok == 1:
                    print(f"CHECK_NORM_LINEAR(B, all, {p}, {t}, {dim}, 1, "
                          f"{vocab}, {tok}, 0, 0, 0, 1, plain)")
        # A batch, where one launch for many tokens stands beside the parts.
        for t, tok in itertools.product(["F16"], [8, 32, 128]):
            p = "TILE16"
            if dim != 2048:
                continue
            print(f"CHECK_QKV(B, wgmma, {p}, {t}, {t}, {dim}, {hd}, {h}, "
                  f"{kvh}, 16, 8, 8, 1, F16, {hd}, 1, 0, 0, {tok}, 0, 1, "
                  "plain)")
            print(f"CHECK_GATE_UP(B, wgmma, {p}, {t}, {t}, SILU, {dim}, "
                  f"{ff}, {tok}, 0, 0, plain)")


MACROS = ["EMBED", "GATHER", "RMSNORM", "LINEAR", "ROPE", "COPY", "ACT", "ADD",
          "TOPK", "SAMPLE", "ATTN", "NORM_LINEAR", "QKV", "GATE_UP", "PACKED",
          "PACKED_EMBED"]

print("""/* covering.def: the cases of folio-check, written by make_covering.py; not to
 * be edited. First field: S also in small runs, L in the full list only, B in
 * --bench only. The others are those of the structs in op_*.c. Included with
 * one of the macros defined. */
/* clang-format off */""")
for m in MACROS:
    print(f"#ifndef CHECK_{m}\n#define CHECK_{m}(...)\n#endif")
small_ops()
embed()
linear()
attention()
sample()
fused()
bench()
packed()
matrix()
for m in MACROS:
    print(f"#undef CHECK_{m}")
