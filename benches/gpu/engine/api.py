"""The process that clients talk to: OpenAI's endpoints and vLLM's own, in vLLM's shapes."""

import asyncio
import itertools
import json
import os
import random
import time
import uuid

import msgpack
import uvloop
import xxhash
import zmq
import zmq.asyncio
from aiohttp import web

from . import core
from .text import Text

VERSION = "0.32.0"


class Refusal(Exception):
    def __init__(self, status, kind, message):
        super().__init__(message)
        body = {"error": {"message": message, "type": kind, "param": None, "code": status}}
        self.response = web.json_response(body, status=status)


def refuse(message):
    return Refusal(400, "BadRequestError", message)


def is_message(value):
    """With content that is a text, parts of one, or none."""
    if not isinstance(value, dict):
        return False
    content = value.get("content")
    parts = content if isinstance(content, list) else []
    fine = all(isinstance(part, dict) and isinstance(part.get("text", ""), str) for part in parts)
    return fine and (content is None or isinstance(content, (str, list)))


class Api:
    def __init__(self, options, text, source, inbox, outbox):
        self.options, self.text, self.source = options, text, source
        context = zmq.asyncio.Context.instance()
        self._in, self._out = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        self._in.bind(inbox)
        self._out.bind(outbox)
        self._ids = itertools.count(1)
        self._answers, self._resets = {}, []
        self._state = {"running": 0, "waiting": 0, "usage": 0.0, "queried": 0, "hit": 0, "preemptions": 0}
        self._started = time.time()
        self._totals = dict.fromkeys(("prompt", "generated", "done", "queued_s", "first_s", "firsts"), 0)

    def app(self):
        app = web.Application(client_max_size=64 << 20)
        app.add_routes([
            web.get("/health", lambda _: self._empty()), web.get("/ping", lambda _: self._empty()),
            web.get("/version", lambda _: self._json({"version": VERSION})),
            web.get("/v1/models", self.models), web.get("/metrics", self.metrics),
            web.get("/kv_event_sources", lambda _: self._json(self.source)),
            web.post("/reset_prefix_cache", self.reset), web.post("/tokenize", self.tokenize),
            web.post("/v1/chat/completions", self.chat), web.post("/v1/completions", self.completions),
        ])  # fmt: skip
        app.on_startup.append(self._listen)
        return app

    async def _empty(self):
        return web.Response()

    async def _json(self, value):
        return web.json_response(value)

    async def _listen(self, _):
        self._listening = asyncio.create_task(self._hear())
        # A front end that hears nothing is of no use, and its health would be a lie.
        self._listening.add_done_callback(lambda _: os._exit(1))

    async def _hear(self):
        while True:
            kind, said, self._state = msgpack.unpackb(await self._out.recv())
            if kind == core.CLEARED:
                asked = self._resets.pop(0)
                # Whoever asked may have gone.
                if not asked.done():
                    asked.set_result(said)
                continue
            for id, token, done, cached, queued_s in said:
                if answer := self._answers.get(id):
                    answer.put_nowait((token, done, cached, queued_s))

    async def models(self, _):
        model = {
            "id": self.options.name, "object": "model", "created": int(self._started), "owned_by": "vllm",
            "root": self.options.name, "parent": None, "max_model_len": self.options.max_model_len,
        }  # fmt: skip
        return web.json_response({"object": "list", "data": [model]})

    async def tokenize(self, request):
        try:
            body = await self._body(request)
            tokens = self._prompt(body, chat="messages" in body)
        except Refusal as refusal:
            return refusal.response
        return web.json_response(
            {"count": len(tokens), "max_model_len": self.options.max_model_len, "tokens": tokens, "token_strs": None}
        )

    async def reset(self, _):
        """Waits until nothing runs: whoever asks wants an empty cache."""
        while True:
            answer = asyncio.get_running_loop().create_future()
            self._resets.append(answer)
            await self._in.send(msgpack.packb((core.RESET,)))
            if await answer:
                return web.Response()
            await asyncio.sleep(0.05)

    async def metrics(self, _):
        state, totals, name = self._state, self._totals, self.options.name
        labels = f'engine="0",model_name="{name}"'
        lines = [
            f'vllm:cache_config_info{{block_size="{self.options.block_tokens}",num_gpu_blocks="{self.options.kv_blocks}",'
            f'enable_prefix_caching="True",engine="0"}} 1.0'
        ]
        for metric, value in (
            ("vllm:num_requests_running", state["running"]),
            ("vllm:num_requests_waiting", state["waiting"]),
            ("vllm:kv_cache_usage_perc", state["usage"]),
            ("vllm:prefix_cache_queries_total", state["queried"]),
            ("vllm:prefix_cache_hits_total", state["hit"]),
            ("vllm:num_preemptions_total", state["preemptions"]),
            ("vllm:prompt_tokens_total", totals["prompt"]),
            ("vllm:prompt_tokens_cached_total", state["hit"]),
            ("vllm:generation_tokens_total", totals["generated"]),
            ("vllm:request_success_total", totals["done"]),
            ("vllm:request_queue_time_seconds_sum", totals["queued_s"]),
            ("vllm:request_queue_time_seconds_count", totals["firsts"]),
            ("vllm:time_to_first_token_seconds_sum", totals["first_s"]),
            ("vllm:time_to_first_token_seconds_count", totals["firsts"]),
        ):
            lines.append(f"{metric}{{{labels}}} {float(value)}")
        lines.append(f"process_start_time_seconds {self._started}")
        lines.append(f"process_cpu_seconds_total {time.process_time()}")
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")

    async def chat(self, request):
        return await self._serve(request, chat=True)

    async def completions(self, request):
        return await self._serve(request, chat=False)

    async def _body(self, request):
        try:
            body = json.loads(await request.read())
        except ValueError as problem:
            raise refuse(f"the body is no JSON: {problem}") from None
        if not isinstance(body, dict):
            raise refuse("the body is no object")
        return body

    def _prompt(self, body, chat):
        if chat:
            messages = body.get("messages")
            if not isinstance(messages, list) or not all(map(is_message, messages)):
                raise refuse("`messages` is missing, expected a list of messages")
            return self.text.chat(messages, body.get("add_generation_prompt") is not False)
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            return self.text.tokens(prompt, body.get("add_special_tokens") is not False)
        if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
            if not 0 <= min(prompt) <= max(prompt) < self.text.vocabulary:
                raise refuse(f"`prompt` has token ids outside of 0 to {self.text.vocabulary - 1}")
            return prompt
        raise refuse("`prompt` is missing, expected a text or a list of token ids")

    def _ask(self, body, chat):
        """What the core is asked, and whether the answer ends by itself."""
        if body.get("model") not in (None, "", self.options.name):
            raise Refusal(404, "NotFoundError", f"The model `{body['model']}` does not exist.")
        tokens = self._prompt(body, chat)
        room = self.options.max_model_len - len(tokens)
        if not tokens or room < 1:
            raise refuse(f"the prompt has {len(tokens)} tokens, expected 1 to {self.options.max_model_len - 1}")
        most = body.get("max_completion_tokens") or body.get("max_tokens") or (room if chat else 16)
        if not isinstance(most, int) or most < 1:
            raise refuse(f"`max_tokens` is {most}, expected 1 or more")
        most = min(most, room)
        length = most
        if self.options.answer_tokens and not body.get("ignore_eos"):
            # Random weights know no end. It depends on the prompt alone, so that it is the same wherever that is computed.
            mean, deviation = self.options.answer_tokens
            seed = xxhash.xxh3_64_intdigest(msgpack.packb(tokens))
            length = min(most, max(1, round(random.Random(seed).gauss(mean, deviation))))
        salt = body.get("cache_salt")
        seed = xxhash.xxh3_64_intdigest(salt.encode()) if isinstance(salt, str) and salt else 0
        temperature = body.get("temperature")
        temperature = float(temperature) if isinstance(temperature, (int, float)) else 1.0
        return tokens, length, temperature, seed, "stop" if length < most else "length"

    async def _serve(self, request, chat):
        try:
            body = await self._body(request)
            tokens, length, temperature, seed, ending = self._ask(body, chat)
        except Refusal as refusal:
            return refusal.response
        id, arrived = next(self._ids), time.monotonic()
        answer = self._answers[id] = asyncio.Queue()
        over = False
        try:
            await self._in.send(msgpack.packb((core.ADD, id, tokens, length, temperature, arrived, seed)))
            reply = Reply(self, request, body, chat, len(tokens), ending)
            cached = None
            while not over:
                token, over, now_cached, queued_s = await answer.get()
                if cached is None:
                    cached = now_cached
                    self._totals["firsts"] += 1
                    self._totals["queued_s"] += queued_s
                    self._totals["first_s"] += time.monotonic() - arrived
                    self._totals["prompt"] += len(tokens)
                self._totals["generated"] += 1
                await reply.token(self.text.pieces.get(token, ""), over)
            self._totals["done"] += 1
            return await reply.end(cached, length)
        finally:
            del self._answers[id]
            if not over:
                await asyncio.shield(self._in.send(msgpack.packb((core.ABORT, id))))


class Reply:
    """One answer, streamed or whole."""

    def __init__(self, api, request, body, chat, prompt_tokens, ending):
        self.request, self.chat, self.prompt_tokens, self.ending = request, chat, prompt_tokens, ending
        self.streamed = body.get("stream") is True
        options = body.get("stream_options")
        self.usage = isinstance(options, dict) and options.get("include_usage") is True
        name = request.headers.get("x-request-id") or uuid.uuid4().hex[:16]
        kind = "chat.completion" if chat else "text_completion"
        self.about = {
            "id": ("chatcmpl-" if chat else "cmpl-") + name,
            "object": kind + (".chunk" if chat and self.streamed else ""),
            "created": int(time.time()), "model": api.options.name,
        }  # fmt: skip
        self.pieces, self.response = [], None
        # Everything but the text is the same in every chunk.
        self._head = "data: " + json.dumps(self.about, separators=(",", ":"))[:-1] + ',"choices":[{"index":0,'

    async def token(self, piece, last):
        if not self.streamed:
            self.pieces.append(piece)
            return
        if self.response is None:
            self.response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
            await self.response.prepare(self.request)
            if self.chat:
                opening = '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
                await self.response.write((self._head + opening).encode())
        text = json.dumps(piece)
        said = f'"delta":{{"content":{text}}}' if self.chat else f'"text":{text}'
        ending = f'"{self.ending}","stop_reason":null' if last else "null"
        await self.response.write(f'{self._head}{said},"logprobs":null,"finish_reason":{ending}}}]}}\n\n'.encode())

    async def end(self, cached, generated):
        usage = {
            "prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens + generated,
            "completion_tokens": generated, "prompt_tokens_details": {"cached_tokens": cached},
        }  # fmt: skip
        if not self.streamed:
            text = "".join(self.pieces)
            said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
            choice = {"index": 0, **said, "logprobs": None, "finish_reason": self.ending}
            return web.json_response({**self.about, "choices": [choice], "usage": usage})
        if self.usage:
            await self.response.write(b"data: " + json.dumps({**self.about, "choices": [], "usage": usage}).encode() + b"\n\n")
        await self.response.write(b"data: [DONE]\n\n")
        await self.response.write_eof()
        return self.response


def serve(options, source, inbox, outbox):
    uvloop.install()
    api = Api(options, Text(options.model), source, inbox, outbox)
    web.run_app(
        api.app(), host=options.host, port=options.port, handler_cancellation=True, access_log=None, print=None
    )
