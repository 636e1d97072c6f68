//! OpenAI's request shapes: the fields that decide a prompt and its answer. Others are skipped.

mod prompt;

use kvlane_indexer::TokenId;
use serde::Deserialize;
use serde_json::{Map, Value};

pub use self::prompt::Prompt;

/// The body of `/v1/chat/completions` (with `messages`) or of `/v1/completions` (with `prompt`).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GenerateRequest {
    pub model: Option<String>,
    pub messages: Option<Vec<Map<String, Value>>>,
    pub prompt: Option<Prompt>,
    pub max_tokens: Option<i64>,
    pub max_completion_tokens: Option<i64>,
    pub min_tokens: usize,
    pub ignore_eos: bool,
    pub stop: Option<Stop>,
    pub n: Option<i64>,
    pub seed: Option<i64>,
    pub logprobs: Option<Logprobs>,
    pub top_logprobs: Option<usize>,
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    pub tools: Option<Vec<Value>>,
    pub tool_choice: Option<Value>,
    pub documents: Option<Vec<Value>>,
    pub chat_template_kwargs: Option<Map<String, Value>>,
    pub add_generation_prompt: Option<bool>,
    pub continue_final_message: bool,
    pub add_special_tokens: Option<bool>,
    pub cache_salt: Option<String>,
    pub priority: i32,
    pub request_id: Option<String>,
    pub session_id: Option<String>,
    pub return_token_ids: Option<bool>,
    pub echo: Option<bool>,
    pub kv_transfer_params: Option<KvTransferParams>,
}

impl GenerateRequest {
    pub fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// The limit on an answer and the name it was given under. Chat has a newer name, which wins there.
    pub fn limit(&self) -> Option<(&'static str, i64)> {
        let newer = self.max_completion_tokens.filter(|_| self.messages.is_some());
        newer
            .map(|limit| ("max_completion_tokens", limit))
            .or(self.max_tokens.map(|limit| ("max_tokens", limit)))
    }

    /// Texts that end an answer.
    pub fn stops(&self) -> &[String] {
        match &self.stop {
            None => &[],
            Some(Stop::One(stop)) => std::slice::from_ref(stop),
            Some(Stop::Several(stops)) => stops,
        }
    }
}

/// vLLM takes a chat's prompt ready-made here since 0.32.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct KvTransferParams {
    pub prompt_token_ids: Option<Vec<TokenId>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Stop {
    One(String),
    Several(Vec<String>),
}

/// Chat asks whether, completions ask how many.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub enum Logprobs {
    Asked(bool),
    Count(usize),
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StreamOptions {
    pub include_usage: Option<bool>,
    pub continuous_usage_stats: Option<bool>,
}
