#!/usr/bin/env python3
"""Trains Rolldock's own small tokenizer and writes `tokenizer/tokenizer.json`.

    python3 data/train_tokenizer.py [--out DIR]

The tokenizer is a byte-level BPE like that of the GPT-2 family, so every byte string has ids and every id
sequence decodes. Each digit is a token of its own, as in Qwen's tokenizers. The tokenizer is trained on the
questions of `arithmetic/train.jsonl`, on the word list below and on a few symbols. The script uses only the
standard library, and breaks ties by the pair itself, so equal input gives equal bytes. The vocabulary is
complete at VOCAB_SIZE_MAX tokens, or when no pair occurs twice in the corpus.
"""

import argparse
import collections
import json
import pathlib
import re

VOCAB_SIZE_MAX = 4096
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

# The pattern by which the tokenizer splits text, and an equivalent pattern for the ASCII text on which it is
# trained (Python's `re` has no \p{L}).
PATTERN = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
TRAINING_PATTERN = re.compile(r" ?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+|\s*[\r\n]+|\s+(?!\S)|\s+")

WORDS = """
about above according across actually add added adding addition after again against ago agree air all almost alone
along already also although altogether always am amount an and angle animal another answer any anything apart are area
around arrange arrive as ask assume at average away back bag ball base be became because become been before began
begin behind being believe below beside best better between beyond big bigger bird bit black blue boat body book both
bottom bought bowl box boy break bring broken brother brought brown build built bus busy but buy by calculate call came
can cannot car card care carry case cat catch cent centimetre century certain chance change check child children choose
circle city class clean clear clock close coat cold colour column combine come common compare complete compute consider
contain continue contradiction convert correct cost could count country couple course cover cube cup current cut daily
dance dark data daughter day days deal decide decimal deep define definition degree denominator depth describe desk
determine diameter did difference different difficult digit digits direct distance divide divided divisible division
divisor do does dog dollar done door double doubled down draw drink drive drop dry due during each ear early earn earth
east easy eat edge effect egg eight either eleven else empty end energy enough entire equal equally equation error
estimate even evening event ever every everyone exact exactly example except exercise expect explain expression eye
face fact factor fall false family far fast father favourite feel feet few field fifteen fifth fifty figure fill final
finally find finds finish fire first fish five fix flat floor flower fly follow following food foot for forget form
formula forty forward found four fourth fraction free fresh friend from front fruit full function further game gather
gave general get girl give given gives glass go goes gold gone good got gram graph grass great greater green grew group
grow guess had half hand happen hard has have having he head hear heat heavy height held help hence her here high hill
him his hold hole home hope horse hot hour hours house how however hundred hungry I idea if imagine important in inch
include increase indeed inside instead integer interest interval into inverse is it its itself job join juice jump just
keep kept kilogram kilometre kind king knew know known label ladder lake land large last late later laugh lay layer
lead learn least leave left leg length less let letter level lie life lift light like likely line list listen litre
little live long look lose loss lost lot loud low lower lunch made main make makes man many mark match mathematics
matter maximum may me mean meaning measure meet member men merely metre middle might mile milk million mind minimum
minus minute minutes mirror miss mix model modulo moment money month moon more morning most mother mountain mouth move
much multiple multiplied multiply must my name namely narrow near nearly need negative neighbour never new next night
nine no none nor north not note nothing notice now number numbers numerator object obtain obviously odd of off often
oil old on once one only open opposite or orange order ordinary other otherwise our out outside over own page paid pair
paper parallel parent part pass past path pattern pay people per percent perfect perhaps perimeter period person phone
pick picture piece pipe place plan plane plant play please plus point pool possible pound power prime print probability
problem process product profit proof property prove pull purple push put quarter question quick quickly quite quotient
race radius rain raise ran rate rather ratio reach read ready real reason receive recall rectangle red reduce relation
remain remainder remaining remains remember remove repeat replace require respectively rest result return rewrite rice
rich ride right ring rise river road rock roll room root rope round row rule run said sail salt same sand satisfy save
saw say scale school score sea season seat second see seem seen select sell send sense sentence separate sequence
series set seven several shape share she sheet ship shirt shoe shop short should show shown shows side sign similar
simple simplify since single sister sit six size sky sleep slice slow slowly small smaller snow so sold solution solve
some son soon sort sound soup south space speed spend spent spread spring square stairs stand star start state stay step
steps stick still stone stop store story straight street string strong student study substitute subtract subtracting
such suddenly sugar sum summer sun suppose sure surface swim table take taken takes talk tall tank tape task taste teach
teacher team tell temperature ten tens term terms test text than that the their them then there therefore these they
thick thin thing think third thirteen thirty this those though thought thousand three through throw thus tie time times
tired to today together told tomorrow ton too took top total touch toward town train travel treat tree triangle trip
triple true try turn twelve twenty twice two type under understand unit unknown until up upon us use used using usual
value variable verify very visit volume wait walk wall want warm was wash watch water way we wear weather week weigh
weight well went were west wet what wheel when where whether which while white who whole whose why wide width will win
wind window winter wish with within without woman women wood word work worker works world worth would wrap write written
wrong yard year years yellow yes yesterday yet yield you young your zero
""".split()


def byte_alphabet():
    """The printable character of every byte in GPT-2's alphabet. Vocabularies are written in these characters."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    alphabet = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in alphabet)
    alphabet.update({byte: chr(256 + nth) for nth, byte in enumerate(others)})
    return [alphabet[byte] for byte in range(256)]


def corpus(train_file):
    """The pieces of the training text, each with its number of occurrences."""
    counts = collections.Counter()
    with train_file.open(encoding="utf-8") as file:
        for line in file:
            counts.update(TRAINING_PATTERN.findall(json.loads(line)["prompt"][0]["content"]))
    for word in WORDS:
        counts[" " + word] += 3
        counts[word.capitalize()] += 2
    for text in ("Answer: ", " = ", " + ", " - ", " * ", " / ", "\n\n", ".\n", ":\n", "<think>", "</think>"):
        for piece in TRAINING_PATTERN.findall(text):
            counts[piece] += 50
    return counts


def train(counts, merges_max):
    """The merges in order; each is a pair of symbols."""
    alphabet = byte_alphabet()
    words = [([alphabet[byte] for byte in word.encode()], count) for word, count in sorted(counts.items())]
    pairs = collections.Counter()
    homes = collections.defaultdict(set)
    for number, (symbols, count) in enumerate(words):
        for pair in zip(symbols, symbols[1:]):
            pairs[pair] += count
            homes[pair].add(number)
    merges = []
    while pairs and len(merges) < merges_max:
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        if pairs[best] < 2:
            break
        merges.append(best)
        for number in sorted(homes[best]):
            symbols, count = words[number]
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] -= count
                homes[pair].discard(number)
            merged = merge(symbols, best)
            words[number] = (merged, count)
            for pair in zip(merged, merged[1:]):
                pairs[pair] += count
                homes[pair].add(number)
        pairs = +pairs
    return merges


def merge(symbols, pair):
    """Returns `symbols` with every occurrence of `pair` merged into one symbol, from the left."""
    merged = []
    index = 0
    while index < len(symbols):
        if tuple(symbols[index : index + 2]) == pair:
            merged.append(symbols[index] + symbols[index + 1])
            index += 2
        else:
            merged.append(symbols[index])
            index += 1
    return merged


def tokenizer_json(merges):
    """The file, in the form that the `tokenizers` library reads."""
    vocab = {token: number for number, token in enumerate((*SPECIALS, *byte_alphabet()))}
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": token, **flags} for number, token in enumerate(SPECIALS)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": [f"{left} {right}" for left, right in merges],
        },
    }


def main():
    here = pathlib.Path(__file__).parent
    parser = argparse.ArgumentParser(description="Train Rolldock's small tokenizer.")
    parser.add_argument("--out", type=pathlib.Path, default=here, help="folder to write below")
    out = parser.parse_args().out / "tokenizer"
    merges_max = VOCAB_SIZE_MAX - len(SPECIALS) - 256
    tokenizer = tokenizer_json(train(corpus(here / "arithmetic" / "train.jsonl"), merges_max))
    out.mkdir(parents=True, exist_ok=True)
    with (out / "tokenizer.json").open("w", encoding="utf-8", newline="\n") as file:
        json.dump(tokenizer, file, ensure_ascii=False, indent=1)
        file.write("\n")
    print(f"{len(tokenizer['model']['vocab'])} tokens")


if __name__ == "__main__":
    main()
