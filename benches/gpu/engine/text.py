"""Text and tokens of a model directory, and which tokens a model without sense may say."""

import json
import pathlib
import re

import jinja2.sandbox
import tokenizers


class Text:
    def __init__(self, directory):
        directory = pathlib.Path(directory)
        self._tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        about = json.loads((directory / "tokenizer_config.json").read_text())
        written = directory / "chat_template.jinja"
        template = written.read_text() if written.exists() else about["chat_template"]
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(template)
        self._specials = {name: about[name] for name in ("bos_token", "eos_token") if isinstance(about.get(name), str)}
        self.vocabulary = self._tokenizer.get_vocab_size()
        self.words, self.openers = self._sayable()
        self.pieces = {token: self._tokenizer.decode([token]) for token in {*self.words, *self.openers}}

    def _sayable(self):
        """Whole words, with the space before them and, at the beginning of an answer, without.

        Their text makes the same tokens again, so that an answer sent back with the next question is found in the cache. Of
        tokens at random that would seldom be true.
        """
        words, openers = [], []
        for token in sorted(self._tokenizer.get_vocab().values()):
            text = self._tokenizer.decode([token])
            if re.fullmatch(r" [a-z]{2,}", text) and self.tokens(text) == [token]:
                words.append(token)
            elif re.fullmatch(r"[A-Za-z][a-z]{2,}", text) and self.tokens(text) == [token]:
                openers.append(token)
        return words, openers

    def tokens(self, text, special=False):
        return self._tokenizer.encode(text, add_special_tokens=special).ids

    def chat(self, messages, answer_follows=True):
        flat = []
        for message in messages:
            content = message.get("content") or ""
            if isinstance(content, list):
                content = "".join(part.get("text", "") for part in content)
            flat.append({**message, "content": content})
        return self.tokens(self._template.render(messages=flat, add_generation_prompt=answer_follows, **self._specials))
