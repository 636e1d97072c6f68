//! OpenAI's request shapes: the fields that decide a prompt and its answer. Others are skipped.

mod prompt;

use kvlane_indexer::TokenId;
use serde::Deserialize;
use serde_json::{Map, Value};

pub use self::prompt::Prompt;
use crate::model::ChatPrompt;

/// The body of `/v1/chat/completions` (with `messages`) or of `/v1/completions` (with `prompt`).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GenerateRequest {
    pub model: Option<String>,
    pub messages: Option<Vec<Map<String, Value>>>,
    pub prompt: Option<Prompt>,
    pub max_tokens: Option<i64>,
    pub max_completion_tokens: Option<i64>,
    pub min_tokens: Option<usize>,
    pub ignore_eos: Option<bool>,
    pub stop: Option<Stop>,
    pub n: Option<i64>,
    pub seed: Option<i64>,
    pub logprobs: Option<Logprobs>,
    pub prompt_logprobs: Option<i64>,
    pub top_logprobs: Option<i64>,
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    pub tools: Option<Vec<Value>>,
    pub tool_choice: Option<Value>,
    pub documents: Option<Vec<Value>>,
    pub chat_template_kwargs: Option<Map<String, Value>>,
    pub add_generation_prompt: Option<bool>,
    pub continue_final_message: Option<bool>,
    pub add_special_tokens: Option<bool>,
    pub cache_salt: Option<String>,
    pub priority: Option<i32>,
    pub request_id: Option<String>,
    pub session_id: Option<String>,
    /// Should be a text.
    pub user: Option<Value>,
    pub return_token_ids: Option<bool>,
    pub echo: Option<bool>,
    /// Cuts the prompt on its left.
    pub truncate_prompt_tokens: Option<i64>,
    pub kv_transfer_params: Option<KvTransferParams>,
}

impl GenerateRequest {
    pub fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Whether the last message is to be continued instead of answered.
    pub fn continues(&self) -> bool {
        self.continue_final_message.unwrap_or(false)
    }

    /// The chat as its template is shown it; none for a completion. `now` is in seconds since 1970.
    pub fn chat_prompt(&self, now: i64) -> Option<ChatPrompt<'_>> {
        Some(ChatPrompt {
            messages: self.messages.as_deref()?,
            // With `tool_choice: none`, too, as vLLM does unless told otherwise.
            tools: self.tools.as_deref().filter(|tools| !tools.is_empty()),
            documents: self.documents.as_deref(),
            add_generation_prompt: self.add_generation_prompt.unwrap_or(!self.continues()),
            continue_final_message: self.continues(),
            variables: self.chat_template_kwargs.as_ref(),
            now,
        })
    }

    /// A chat's prompt that came ready-made.
    pub fn ready_tokens(&self) -> Option<&[TokenId]> {
        self.kv_transfer_params.as_ref()?.prompt_token_ids.as_deref()
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
