"""No page says that something is missing which another page explains."""

from __future__ import annotations

import re

import pytest
from support.machines import ROOT

DOCS = ROOT / "docs"

#: Pages that explain a feature, and what other pages call it.
FEATURES = {
    "export": r"shaders?|shader code|exports? to (?:C|GLSL|WGSL|Slang|shaders)|code generation",
    "export_gallery": r"web pages?|viewers?",
    "distributed": r"distributed training|data parallel\w*|several GPUs|multi-GPU|MPI",
    "many_fields": r"batched training|many fields",
    "uncertainty": r"uncertainty|Monte Carlo dropout",
    "dropout": r"dropout",
    "derivatives": r"(?:gradients of gradients|losses on gradients|eikonal losses)",
    "encodings": r"hash grids?|encodings?|bounds",
    "pytorch": r"modules? (?:of|for) PyTorch|PyTorch modules?",
    "backends": r"CPU|LLVM|CUDA",
    "config": r"tiny-cuda-nn configurations?",
    "mitsuba": r"Mitsuba|materials?",
    "mitsuba_light": r"radiance caches?",
    "rendering": r"sphere tracing|ray marching|occupancy grids?",
    "precision": r"half precision|audits?",
    "textures": r"texture compression",
    "weights": r"weight decay|gradient clipping|averages of weights",
    "your_data": r"point clouds?|meshes|volumes|audio",
    "reference/command_line": r"command line",
}

#: Words before a name, close to it, that deny it.
BEFORE = r"\b(?:no|not|lacks?|missing|cannot(?: be)?|unsupported)(?: \w+){0,2}? "
#: And behind it.
BEHIND = r" (?:is|are) (?:not (?:supported|possible|available)|missing|unsupported)| (?:does|do) not exist| come out of"
#: Headings of lists of what is missing.
MISSING = re.compile(
    r"^#+ (?:What coopnet does not have|Missing features|What there is not)\n(.*?)(?=^#|\Z)", re.M | re.S
)

#: Sentences that are true: about somebody else's library, or about one case of many.
TRUE = [
    "**Dropout** does not exist there",  # in drjit.nn
    "on its own sample with a hash grid tiny-cuda-nn trains in about three quarters of",
    "not possible on CUDA, whose cooperative vectors multiply half-precision",
    "Networks are multilayer perceptrons with encodings, skips and heads",
    "instant-ngp's renderer, camera models and viewers",
    "must not render one Mitsuba scene at the same time",
    "not where the encoding expects them",
    "is no encoding but a network of sines",
    "A CPU gains no time by half precision",
    "without a key there is no dropout",
    "It needs no Mitsuba",
    "No CUDA toolkit",
]


def pages():
    files = [ROOT / "README.md", *DOCS.rglob("*.md"), *DOCS.glob("tutorials/*.py"), *DOCS.glob("reference/*.rst")]
    files = [f for f in files if "gallery" not in f.parts]  # made of the tutorials
    return {str(f.relative_to(ROOT)): f.read_text(encoding="utf-8") for f in sorted(files)}


def sentences(text):
    """Prose in pieces that end with a full stop or are cells and items; code is left out."""
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    prose = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", prose)
    return [re.sub(r"\s+", " ", s) for s in re.split(r"(?<=[.:;!?])\s|\n\n|\n[-|#]|\|", prose)]


def denials(text):
    """Sentences that say a feature is missing, with the page that explains it."""
    lists = [s for section in MISSING.findall(text) for item in re.split(r"\n(?=- )|;|\n\n", section) for s in [item]]
    for page, names in FEATURES.items():
        said = re.compile(rf"(?:{BEFORE})(?:{names})(?![-\w])|(?<![-\w])(?:{names})(?:{BEHIND})", re.I)
        yield from ((page, s) for s in sentences(text) if said.search(s))
        for item in lists:  # under such a heading a feature's bare name is a denial, unless a link leads to its page
            if re.search(rf"(?<![-\w])(?:{names})(?![-\w])", item, re.I) and f"{page}.md" not in item:
                yield page, re.sub(r"\s+", " ", item)


def test_pages_deny_nothing_that_there_is():
    wrong = [
        f"{name}: {sentence.strip()!r} (see docs/{page}.md)"
        for name, text in pages().items()
        for page, sentence in denials(text)
        if not any(true in sentence for true in TRUE)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_feature_has_its_page():
    assert all((DOCS / f"{page}.md").exists() for page in FEATURES)


@pytest.mark.parametrize(
    "sentence",
    [
        "- Export: no ONNX, no shader code.",
        "There is no export to shaders or ONNX.",
        "No shaders come out of it: weights leave as arrays.",
        "## What coopnet does not have\n\nConvolutions; distributed training; data loaders.\n",
        "Eikonal losses are not supported.",
        "Hash grids are missing.",
    ],
)
def test_it_finds_what_pages_once_said(sentence):
    assert list(denials(sentence))
