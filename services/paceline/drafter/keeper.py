"""The life of a store that has a file: loaded at the start, saved while it changes and at the end."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path

from paceline.drafter.store_file import Tokenizer, read_store, write_store
from paceline.drafter.text_store import TextStore
from paceline.errors import InvalidField

log = logging.getLogger(__name__)

USUAL_TOKEN_BYTES = 450  # memory of a token of text that repeats itself as chat does


class StoreKeeper:
    """Loads a store from its file and saves it there. `save` may be called from any thread."""

    def __init__(self, store: TextStore, path: Path, tokenizer: Tokenizer, save_s: float) -> None:
        """`save_s`: seconds between looks whether there is something to save; 0 never writes the file."""
        self._store, self._path, self._tokenizer, self._save_s = store, path, tokenizer, save_s
        self._saved = store.revision
        self._lock = threading.Lock()  # one save at a time

    def load(self) -> None:
        """Queues the file's texts; the store indexes them in parts, behind whatever is asked of it meanwhile.

        Raises InvalidField or TokenizerMismatch, also for a file that could not be saved later.
        """
        if self._path.exists():
            texts = read_store(self._path, self._tokenizer)
            self._store.preload(texts)
            log.info("store_file %s: %d texts, %d tokens", self._path, len(texts.lengths), len(texts.tokens))
            if len(texts.tokens) * USUAL_TOKEN_BYTES > self._store.capacity:
                log.warning("store_file %s: the oldest texts may not fit; raise store_mb to hold them all", self._path)
        elif self._save_s == 0:
            raise InvalidField("store_file", str(self._path), "a file that exists, since store_save_s is 0")
        folder = self._path.resolve().parent
        if self._save_s and not (folder.is_dir() and os.access(folder, os.W_OK)):
            remedy = "With store_save_s 0 the file is only read."
            raise InvalidField("store_file", str(self._path), "a file in a folder that can be written", remedy)

    def save(self) -> bool:
        """Saves the store if replies came since the last time. False if that fails; the log says why."""
        with self._lock:
            revision = self._store.revision
            if self._save_s == 0 or revision == self._saved:
                return True
            texts = self._store.texts()
            try:
                write_store(self._path, texts, self._tokenizer)
            except OSError as error:
                log.warning("store_file %s was not saved: %s", self._path, error)
                return False
            self._saved = revision
            log.info("store_file %s: saved %d tokens", self._path, len(texts.tokens))
            return True

    async def run(self) -> None:
        """Saves now and then, until it is cancelled."""
        while self._save_s:
            await asyncio.sleep(self._save_s)
            await asyncio.to_thread(self.save)
