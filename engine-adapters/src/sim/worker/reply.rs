//! Answers in the shape of vLLM 0.32: whole ones, and the chunks of streamed ones.
//!
//! A chunk is written out by hand, because there is one for every token and its frame never changes.

use std::fmt::Write;

use bytes::Bytes;
use kvlane_indexer::TokenId;
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use super::generate::{Kind, Plan};
use crate::model::Tokenizer;
use crate::sim::Piece;

pub(super) const FINGERPRINT: &str = concat!("kvlane-worker-", env!("CARGO_PKG_VERSION"), "-simulated");
pub(super) const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");

/// What all chunks and the whole of one reply have in common.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) kind: Kind,
    pub(super) id: String,
    pub(super) created: i64,
    pub(super) model: String,
    pub(super) return_token_ids: bool,
    pub(super) logprobs: Option<usize>,
    pub(super) continuous_usage: bool,
}

/// Tokens counted at the end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    pub(super) prompt_tokens: usize,
    pub(super) completion_tokens: usize,
    pub(super) cached_tokens: usize,
    /// Prompt tokens that are cached now and were not before.
    pub(super) created_cache_tokens: usize,
}

impl Usage {
    pub(super) fn add(&mut self, other: Self) {
        self.prompt_tokens += other.prompt_tokens;
        self.completion_tokens += other.completion_tokens;
        self.cached_tokens += other.cached_tokens;
        self.created_cache_tokens += other.created_cache_tokens;
    }

    fn total(self) -> usize {
        self.prompt_tokens + self.completion_tokens
    }
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

impl Reply {
    fn object(&self, whole: bool) -> &'static str {
        match (self.kind, whole) {
            (Kind::Chat, true) => "chat.completion",
            (Kind::Chat, false) => "chat.completion.chunk",
            (Kind::Completion, _) => "text_completion",
        }
    }

    /// `data: ` and a chunk up to its choices.
    fn head(&self) -> String {
        let mut chunk = String::with_capacity(384);
        let _ = write!(
            chunk,
            "data: {{\"id\":{},\"object\":\"{}\",\"created\":{},\"model\":{},\"choices\":[",
            quoted(&self.id),
            self.object(false),
            self.created,
            quoted(&self.model)
        );
        chunk
    }

    fn tail(&self, mut chunk: String, prompt_tokens: usize, completion_tokens: usize, rest: &str) -> Bytes {
        if self.continuous_usage {
            let total = prompt_tokens + completion_tokens;
            let _ = write!(
                chunk,
                ",\"usage\":{{\"prompt_tokens\":{prompt_tokens},\"total_tokens\":{total},\
                 \"completion_tokens\":{completion_tokens},\"completion_tokens_details\":null}}"
            );
        }
        chunk.push_str(rest);
        chunk.push_str("}\n\n");
        chunk.into()
    }

    /// A chat opens with a chunk that names the role.
    pub(super) fn opening(&self, index: usize, plan: &Plan) -> Option<Bytes> {
        if self.kind != Kind::Chat {
            return None;
        }
        let mut chunk = self.head();
        let _ = write!(
            chunk,
            "{{\"index\":{index},\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\"logprobs\":null,\"finish_reason\":null}}]"
        );
        let ids = self.ids(&plan.prompt);
        Some(self.tail(
            chunk,
            plan.prompt.len(),
            0,
            &format!(",\"prompt_token_ids\":{ids},\"prompt_text\":null"),
        ))
    }

    fn ids(&self, tokens: &[TokenId]) -> String {
        if self.return_token_ids { format!("{tokens:?}").replace(' ', "") } else { "null".to_owned() }
    }

    /// The tokens from `from` to `to` of an answer; the last of all when they end it.
    pub(super) fn chunk(
        &self,
        index: usize,
        plan: &Plan,
        from: usize,
        to: usize,
        tokenizer: &Tokenizer,
    ) -> Bytes {
        let pieces = &plan.answer[from..to];
        let last = to == plan.answer.len();
        let finish = if last { format!("\"{}\"", plan.finish) } else { "null".to_owned() };
        let stop = plan.stop.as_deref().filter(|_| last).map_or_else(|| "null".to_owned(), quoted);
        let text: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
        let tokens: Vec<TokenId> = pieces.iter().map(|piece| piece.token).collect();
        let ids = self.ids(&tokens);
        let logprobs = self.logprobs(plan, from, to, tokenizer);
        let mut chunk = self.head();
        let _ = match (self.kind, &plan.tool) {
            (Kind::Chat, tool) => {
                let delta = match tool {
                    None => format!("\"content\":{}", quoted(&text)),
                    Some(tool) if from == 0 => format!(
                        "\"tool_calls\":[{{\"id\":{},\"type\":\"function\",\"index\":0,\"function\":{{\"name\":{},\"arguments\":{}}}}}]",
                        quoted(&tool.id),
                        quoted(&tool.name),
                        quoted(&text)
                    ),
                    Some(_) => {
                        format!(
                            "\"tool_calls\":[{{\"index\":0,\"function\":{{\"arguments\":{}}}}}]",
                            quoted(&text)
                        )
                    }
                };
                let stop = if last { format!(",\"stop_reason\":{stop}") } else { String::new() };
                write!(
                    chunk,
                    "{{\"index\":{index},\"delta\":{{{delta}}},\"logprobs\":{logprobs},\"finish_reason\":{finish}{stop},\"token_ids\":{ids}}}]"
                )
            }
            (Kind::Completion, _) => {
                let prompt = if from == 0 { self.ids(&plan.prompt) } else { "null".to_owned() };
                write!(
                    chunk,
                    "{{\"index\":{index},\"text\":{},\"logprobs\":{logprobs},\"finish_reason\":{finish},\
                     \"stop_reason\":{stop},\"prompt_token_ids\":{prompt},\"token_ids\":{ids}}}]",
                    quoted(&text)
                )
            }
        };
        self.tail(chunk, plan.prompt.len(), to, "")
    }

    /// The one chunk that carries what a stream cost.
    pub(super) fn usage(&self, usage: Usage) -> Bytes {
        let details = match self.kind {
            Kind::Chat => {
                json!({"cached_tokens": usage.cached_tokens, "created_cache_tokens": usage.created_cache_tokens})
            }
            Kind::Completion => json!({"cached_tokens": usage.cached_tokens}),
        };
        let usage = json!({
            "prompt_tokens": usage.prompt_tokens,
            "total_tokens": usage.total(),
            "completion_tokens": usage.completion_tokens,
            "prompt_tokens_details": details,
        });
        format!("{}],\"usage\":{usage},\"system_fingerprint\":\"{FINGERPRINT}\"}}\n\n", self.head()).into()
    }

    /// The answer at once.
    pub(super) fn whole(&self, plans: &[Plan], usage: Usage, tokenizer: &Tokenizer) -> Value {
        let choices: Vec<Value> =
            plans.iter().enumerate().map(|(index, plan)| self.choice(index, plan, tokenizer)).collect();
        let created = (self.kind == Kind::Chat).then_some(usage.created_cache_tokens);
        let usage = json!({
            "prompt_tokens": usage.prompt_tokens,
            "total_tokens": usage.total(),
            "completion_tokens": usage.completion_tokens,
            "prompt_tokens_details": {
                "cached_tokens": usage.cached_tokens,
                "created_cache_tokens": created,
                "multimodal_tokens": null,
            },
            "completion_tokens_details": null,
        });
        let mut whole = json!({
            "id": self.id,
            "object": self.object(true),
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "service_tier": null,
            "system_fingerprint": FINGERPRINT,
            "usage": usage,
        });
        if self.kind == Kind::Chat {
            whole["prompt_logprobs"] = Value::Null;
            whole["prompt_token_ids"] = plans
                .first()
                .filter(|_| self.return_token_ids)
                .map_or(Value::Null, |plan| json!(*plan.prompt));
            whole["prompt_text"] = Value::Null;
        }
        for field in ["kv_transfer_params", "ec_transfer_params", "metrics"] {
            whole[field] = Value::Null;
        }
        whole
    }

    fn choice(&self, index: usize, plan: &Plan, tokenizer: &Tokenizer) -> Value {
        let text: String = plan.answer.iter().map(|piece| piece.text.as_str()).collect();
        let ids =
            self.return_token_ids.then(|| plan.answer.iter().map(|piece| piece.token).collect::<Vec<_>>());
        let logprobs = self.logprobs(plan, 0, plan.answer.len(), tokenizer);
        match self.kind {
            Kind::Chat => {
                let mut message = json!({
                    "role": "assistant",
                    "content": text,
                    "refusal": null,
                    "annotations": null,
                    "audio": null,
                    "function_call": null,
                    "reasoning": null,
                });
                if let Some(tool) = &plan.tool {
                    message["content"] = Value::Null;
                    message["tool_calls"] = json!([{
                        "id": tool.id,
                        "type": "function",
                        "function": {"name": tool.name, "arguments": text},
                    }]);
                }
                json!({
                    "index": index,
                    "message": message,
                    "logprobs": logprobs,
                    "finish_reason": plan.finish,
                    "stop_reason": plan.stop,
                    "token_ids": ids,
                    "routed_experts": null,
                })
            }
            Kind::Completion => json!({
                "index": index,
                "text": text,
                "logprobs": logprobs,
                "finish_reason": plan.finish,
                "stop_reason": plan.stop,
                "token_ids": ids,
                "prompt_logprobs": null,
                "prompt_token_ids": self.return_token_ids.then_some(&*plan.prompt),
                "routed_experts": null,
            }),
        }
    }

    /// Made-up log-probabilities in the right shape; null when none were asked for.
    fn logprobs(&self, plan: &Plan, from: usize, to: usize, tokenizer: &Tokenizer) -> Value {
        let Some(alternatives) = self.logprobs else { return Value::Null };
        let name = |piece: &Piece| {
            if piece.text.is_empty() {
                tokenizer.token(piece.token).unwrap_or_default()
            } else {
                piece.text.clone()
            }
        };
        let guess = |at: usize, piece: &Piece| {
            let hash = xxh3_64(&[at.to_le_bytes(), (piece.token as usize).to_le_bytes()].concat());
            -((hash % 3000) as f64) / 1000.0
        };
        let tokens = (from..to).map(|at| (name(&plan.answer[at]), guess(at, &plan.answer[at])));
        match self.kind {
            Kind::Chat => {
                let entry = |(token, logprob): (String, f64)| json!({"token": token, "logprob": logprob, "bytes": token.as_bytes()});
                let content: Vec<Value> = tokens
                    .map(|token| {
                        let mut content = entry(token.clone());
                        content["top_logprobs"] =
                            (0..alternatives.min(1)).map(|_| entry(token.clone())).collect();
                        content
                    })
                    .collect();
                json!({"content": content})
            }
            Kind::Completion => {
                let chars = |piece: &Piece| piece.text.chars().count();
                let mut offset: usize = plan.answer[..from].iter().map(chars).sum();
                let mut offsets = Vec::with_capacity(to - from);
                for piece in &plan.answer[from..to] {
                    offsets.push(offset);
                    offset += chars(piece);
                }
                let (tokens, logprobs): (Vec<String>, Vec<f64>) = tokens.unzip();
                let top: Vec<Value> = tokens
                    .iter()
                    .zip(&logprobs)
                    .map(|(token, logprob)| json!({token.as_str(): logprob}))
                    .collect();
                json!({"text_offset": offsets, "token_logprobs": logprobs, "tokens": tokens, "top_logprobs": top})
            }
        }
    }
}
