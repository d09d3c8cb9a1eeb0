"""Rewrites `SourceId(..)` and `.map(SourceId)` for the private field. Run in the root of a checkout."""
import re, subprocess, sys
files = subprocess.run(["git", "ls-files", "*.rs", "*.md"], capture_output=True, text=True).stdout.split()
NEEDLE = re.compile(r"(?<!struct )\bSourceId\(")
def lit(e):
    e = e.strip()
    m = re.fullmatch(r"(\w+) << 3", e)
    if m and m[1].isdigit(): return (0, int(m[1]), 0)
    m = re.fullmatch(r"(\w+) << 8", e)
    if m and m[1].isdigit(): return (int(m[1]), 0, 0)
    m = re.fullmatch(r"(\w+) << 8 \| (\w+) << 3", e)
    if m and m[1].isdigit() and m[2].isdigit(): return (int(m[1]), int(m[2]), 0)
    m = re.fullmatch(r"(0x[0-9a-fA-F_]+|[0-9]+)", e)
    if m:
        n = int(m[1].replace("_", ""), 0)
        return (n >> 8, n >> 3 & 31, n & 7)
for f in files:
    s = open(f).read(); out = ""; i = 0; changed = False
    while m := NEEDLE.search(s, i):
        out += s[i:m.start()]
        d = 1; j = m.end()
        while d:
            d += {"(": 1, ")": -1}.get(s[j], 0); j += 1
        e = s[m.end():j - 1]
        l = lit(e)
        out += f"SourceId::new({l[0]}, {l[1]}, {l[2]})" if l else f"SourceId::from_requester({e})"
        i = j; changed = True
    out += s[i:]
    t = re.sub(r"\.map\((iommu::)?SourceId\)", r".map(\1SourceId::from_requester)", out)
    if t != s: open(f, "w").write(t)
