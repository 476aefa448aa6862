"""Tokenizers of the kinds that real models have, trained on a few lines, with text that splits badly."""

from __future__ import annotations

import json
from collections.abc import Callable

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from paceline.runtime.tokenizer import HuggingFaceTokenizer

SAMPLE = "Příliš žluťoučký 안녕 👩‍👩‍👧 ok  two\n\n12. done"
LINES = ["the code is one two three ok done", "so END ENGINE", "kůň žluťoučký 안녕 세상\n\n"]
BOS, EOS, MARK = "<s>", "</s>", "<mark>"  # MARK is special, and is not an end
SPECIAL = ["<unk>", BOS, EOS, MARK]
BYTES = [f"<0x{value:02X}>" for value in range(256)]


def byte_level() -> Tokenizer:
    """Byte-level BPE, as Llama 3, Qwen and SmolLM have it: a character may lie across tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet))
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def sentencepiece() -> Tokenizer:
    """BPE with a space put before the text, and bytes for unknown characters, as Llama 2 and Mistral have it."""
    trained = Tokenizer(models.BPE())
    trained.train_from_iterator(
        ["▁" + line.replace(" ", "▁") for line in LINES[:2]], trainers.BpeTrainer(vocab_size=90)
    )
    model = json.loads(trained.to_str())["model"]
    pieces = [*SPECIAL, *BYTES, *model["vocab"]]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def metaspace() -> Tokenizer:
    """Unigram pieces that carry their leading space, without bytes, as T5 has it."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator([*LINES, SAMPLE], trainer)
    return tokenizer


def wordpiece() -> Tokenizer:
    """Words and their continuations; the decoder writes the spaces."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator([*LINES, SAMPLE], trainer)
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": byte_level,
    "sentencepiece": sentencepiece,
    "metaspace": metaspace,
    "wordpiece": wordpiece,
}


def wrapped(tokenizer: Tokenizer, template: str | None = None) -> HuggingFaceTokenizer:
    """As `load_tokenizer` would give it, with EOS as the one end."""
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, unk_token="<unk>")
    fast.chat_template = template
    return HuggingFaceTokenizer(fast, frozenset({tokenizer.token_to_id(EOS)}))
