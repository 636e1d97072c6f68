//! From a request to what the index is asked: chat template, tokens, block hashes.
//!
//! Whatever this makes of a prompt only decides where it goes. A prompt it can make nothing of (media, a template that
//! refuses) is placed by load, and the engine says what is wrong with it.

mod models;
mod pool;
mod token_cache;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::HeaderValue;
use kvlane_engine_adapters::http_client::HttpClient;
use kvlane_engine_adapters::model::Model;
use kvlane_engine_adapters::openai::{self, GenerateRequest};
use kvlane_engine_adapters::tls::ClientTls;
use kvlane_indexer::{BlockHasher, BlockSize, Namespace, SequenceHash, TokenId};
use serde_json::{Value, json};
use tokio::time::Instant;

pub use self::models::ModelFinder;
pub use self::pool::Pool;
pub use self::token_cache::{TokenCache, TokenCacheStats};
use crate::error::RouterError;
use crate::openai::{ClientRequest, Imposed, Named, json_error, salted};

/// How a model's requests become tokens.
#[derive(Clone, Debug)]
pub enum Words {
    /// By its own tokenizer and template, here.
    Local { model: Arc<Model>, id: u64 },
    /// By asking an engine's `/tokenize`.
    Engine,
    /// Not at all: pieces of text stand for blocks. Placements are remembered, events match nothing.
    Text,
}

impl Words {
    /// The better the higher.
    pub fn rank(&self) -> u8 {
        match self {
            Self::Local { .. } => 2,
            Self::Engine => 1,
            Self::Text => 0,
        }
    }

    /// The word for people.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Local { .. } => "tokenizer",
            Self::Engine => "engine",
            Self::Text => "text",
        }
    }
}

/// A prompt as the index and the scheduler know it.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub tokens: usize,
    /// Whether that is the engine's own count, and not a guess from the text's length.
    pub exact: bool,
    pub blocks: Arc<[SequenceHash]>,
    pub took: Took,
}

/// Where the time went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Took {
    pub template: Duration,
    pub tokenize: Duration,
    pub hash: Duration,
}

impl Prompt {
    /// Of a prompt nothing is known of.
    pub fn unknown(bytes: usize) -> Self {
        Self { tokens: bytes / BYTES_PER_TOKEN, exact: false, blocks: Arc::new([]), took: Took::default() }
    }
}

/// What tells one model's blocks from another's, and how many tokens one has.
#[derive(Clone, Debug)]
pub struct Blocks {
    pub size: BlockSize,
    /// The adapter asked for.
    pub lora_name: Option<String>,
}

/// English text has about this many bytes per token.
const BYTES_PER_TOKEN: usize = 4;
/// Keeps hashes of text apart from hashes of tokens.
const TEXT_NAMESPACE: &str = "kvlane: text in place of tokens";

#[derive(Debug)]
pub struct Preprocessor {
    pool: Pool,
    cache: Arc<TokenCache>,
    engines: HttpClient,
}

/// Prompts up to this many bytes hold nobody up for long, even where no word of theirs was seen before.
const DONE_HERE: usize = 32 << 10;

/// An engine's `/tokenize` may take this long and answer this much.
const TOKENIZE_PATIENCE: Duration = Duration::from_secs(2);
const TOKENIZE_ANSWER: usize = 64 << 20;

impl Preprocessor {
    pub fn new(pool: Pool, cache_bytes: usize, tls: Arc<ClientTls>) -> Self {
        let engines = HttpClient::new(TOKENIZE_PATIENCE, TOKENIZE_ANSWER, tls);
        Self { pool, cache: Arc::new(TokenCache::new(cache_bytes)), engines }
    }

    /// Shows this to engines.
    #[must_use]
    pub fn bearing(mut self, authorization: Option<HeaderValue>) -> Self {
        self.engines = self.engines.bearing(authorization);
        self
    }

    pub fn cache_stats(&self) -> TokenCacheStats {
        self.cache.stats()
    }

    pub fn waiting(&self) -> usize {
        self.pool.waiting()
    }

    /// Work on a body of `size` bytes, off the async threads when that is long.
    pub async fn run<T: Send + 'static>(
        &self,
        size: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, RouterError> {
        if self.pool.is_long(size) { self.pool.run(size, work).await } else { Ok(work()) }
    }

    /// Reads a request off the async threads when it is long.
    pub async fn read(
        &self,
        endpoint: crate::openai::Endpoint,
        bytes: Bytes,
        imposed: Option<Arc<Imposed>>,
    ) -> Result<Arc<ClientRequest>, RouterError> {
        let size = bytes.len();
        let read = move || ClientRequest::read_imposed(endpoint, bytes, imposed.as_deref());
        Ok(Arc::new(self.run(size, read).await??))
    }

    /// What of a request that is passed through has to be known, and its body.
    pub async fn named(
        &self,
        bytes: Bytes,
        imposed: Option<Arc<Imposed>>,
    ) -> Result<(Named, Bytes), RouterError> {
        let size = bytes.len();
        let read = move || {
            let named = serde_json::from_slice(&bytes).map_err(|_| json_error::<Named>(&bytes))?;
            let body = imposed.map_or(Ok(bytes.clone()), |imposed| salted(&bytes, &imposed))?;
            Ok((named, body))
        };
        self.run(size, read).await?
    }

    /// The request's prompt. `engine` is a worker that can be asked when there is no tokenizer here; `now` the wall
    /// time for templates that write the date.
    pub async fn prompt(
        &self,
        request: &Arc<ClientRequest>,
        words: &Words,
        blocks: &Blocks,
        engine: Option<&str>,
        now: i64,
    ) -> Result<Prompt, RouterError> {
        let size = request.bytes.len();
        // Which tokens the engine cuts away is for it to decide.
        if request.view.truncate_prompt_tokens.is_some() {
            return Ok(Prompt::unknown(size));
        }
        if let (Words::Engine, Some(url)) = (words, engine)
            && let Some(tokens) = self.ask_engine(request, url).await?
        {
            let (request, blocks) = (request.clone(), blocks.clone());
            return self.pool.run(size, move || hashed(&tokens, &request.view, &blocks)).await;
        }
        let quick = match words {
            Words::Local { model, .. } => model.tokenizer.is_quick(),
            Words::Engine | Words::Text => true,
        };
        let (cache, request, words, blocks) =
            (self.cache.clone(), request.clone(), words.clone(), blocks.clone());
        let made = move || match &words {
            Words::Local { model, id } => local(&cache, model, *id, &request, &blocks, now),
            Words::Engine | Words::Text => text_blocks(&request.view, &blocks),
        };
        // A hop to another thread costs more than a short prompt's tokens, where those are quick to make.
        if quick && size <= DONE_HERE {
            // As on a thread of its own: what panics fails this request alone.
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(made));
            return caught.map_err(|_| RouterError::Internal);
        }
        self.pool.run(size, made).await
    }

    /// Tokens as an engine makes them; none when it cannot be asked, or several prompts would have to be.
    async fn ask_engine(
        &self,
        request: &Arc<ClientRequest>,
        url: &str,
    ) -> Result<Option<Vec<TokenId>>, RouterError> {
        let (size, asked) = (request.bytes.len(), request.clone());
        let question = match self.pool.run(size, move || tokenize_question(&asked.view)).await? {
            None => return Ok(None),
            Some(Tokenize::Known(tokens)) => return Ok(Some(tokens)),
            Some(Tokenize::Ask(question)) => question,
        };
        let Ok(answer) = self.engines.post_json(&format!("{url}/tokenize"), question).await else {
            return Ok(None);
        };
        let read = move || serde_json::from_slice::<Tokenized>(&answer).ok().map(|answer| answer.tokens);
        self.pool.run(size, read).await
    }
}

/// What has to be asked to know a prompt's tokens.
enum Tokenize {
    Known(Vec<TokenId>),
    Ask(Bytes),
}

#[derive(serde::Deserialize)]
struct Tokenized {
    tokens: Vec<TokenId>,
}

/// The same prompt, as vLLM's `/tokenize` wants it.
fn tokenize_question(view: &GenerateRequest) -> Option<Tokenize> {
    let mut question = match (&view.messages, &view.prompt) {
        (Some(messages), _) => match view.ready_tokens() {
            Some(tokens) => return Some(Tokenize::Known(tokens.to_vec())),
            None => json!({ "model": view.model, "messages": messages }),
        },
        (None, Some(openai::Prompt::Text(text))) => json!({ "model": view.model, "prompt": text }),
        (None, Some(openai::Prompt::Tokens(tokens))) => return Some(Tokenize::Known(tokens.clone())),
        _ => return None,
    };
    for (name, value) in [
        ("add_special_tokens", view.add_special_tokens.map(Value::from)),
        ("tools", view.tools.as_ref().map(|tools| json!(tools))),
        ("documents", view.documents.as_ref().map(|documents| json!(documents))),
        ("chat_template_kwargs", view.chat_template_kwargs.as_ref().map(|kwargs| json!(kwargs))),
        ("add_generation_prompt", view.add_generation_prompt.map(Value::from)),
        ("continue_final_message", view.continue_final_message.map(Value::from)),
    ] {
        value.into_iter().for_each(|value| question[name] = value);
    }
    Some(Tokenize::Ask(question.to_string().into()))
}

fn local(
    cache: &TokenCache,
    model: &Model,
    id: u64,
    request: &ClientRequest,
    blocks: &Blocks,
    now: i64,
) -> Prompt {
    let view = &request.view;
    let begun = Instant::now();
    let (mut template, mut others) = (Duration::ZERO, 0);
    let tokens = if let Some(tokens) = view.ready_tokens().filter(|_| view.messages.is_some()) {
        tokens.to_vec()
    } else if let Some(prompt) = view.chat_prompt(now) {
        let rendered = model.template.as_ref().map(|template| template.render(&prompt));
        template = begun.elapsed();
        match rendered {
            Some(Ok(text)) => {
                cache.encode(&model.tokenizer, id, &text, view.add_special_tokens == Some(true))
            }
            Some(Err(error)) => {
                tracing::debug!(%error, "prompt cannot be rendered; the engine will say so, or knows better");
                return Prompt::unknown(request.bytes.len());
            }
            None => return Prompt::unknown(request.bytes.len()),
        }
    } else {
        let mark = view.add_special_tokens.unwrap_or(true);
        let encode = |text: &str| cache.encode(&model.tokenizer, id, text, mark);
        // Of several prompts the first decides where all go.
        match &view.prompt {
            Some(openai::Prompt::Text(text)) => encode(text),
            Some(openai::Prompt::Tokens(tokens)) => tokens.clone(),
            Some(openai::Prompt::Texts(texts)) => {
                others = texts.iter().skip(1).map(String::len).sum::<usize>() / BYTES_PER_TOKEN;
                texts.first().map(|text| encode(text)).unwrap_or_default()
            }
            Some(openai::Prompt::TokenLists(lists)) => {
                others = lists.iter().skip(1).map(Vec::len).sum();
                lists.first().cloned().unwrap_or_default()
            }
            None => Vec::new(),
        }
    };
    let tokenize = begun.elapsed() - template;
    let mut prompt = hashed(&tokens, view, blocks);
    prompt.tokens += others;
    prompt.exact = others == 0;
    prompt.took = Took { template, tokenize, ..prompt.took };
    prompt
}

fn hashed(tokens: &[TokenId], view: &GenerateRequest, blocks: &Blocks) -> Prompt {
    let begun = Instant::now();
    let namespace =
        Namespace { lora_name: blocks.lora_name.as_deref(), cache_salt: view.cache_salt.as_deref() };
    let hashes = BlockHasher::new(blocks.size, namespace).sequence(tokens);
    let took = Took { hash: begun.elapsed(), ..Took::default() };
    Prompt { tokens: tokens.len(), exact: true, blocks: hashes.into(), took }
}

/// Four bytes of text in place of a token.
fn text_blocks(view: &GenerateRequest, blocks: &Blocks) -> Prompt {
    let mut text = String::new();
    for message in view.messages.iter().flatten() {
        for field in ["role", "content", "tool_calls"] {
            match message.get(field) {
                Some(Value::String(value)) => text.push_str(value),
                Some(value) => text.push_str(&value.to_string()),
                None => {}
            }
            text.push('\u{1}');
        }
    }
    let ready = match &view.prompt {
        Some(openai::Prompt::Text(prompt)) => {
            text.push_str(prompt);
            None
        }
        Some(openai::Prompt::Texts(prompts)) => {
            prompts.first().into_iter().for_each(|prompt| text.push_str(prompt));
            None
        }
        Some(openai::Prompt::Tokens(tokens)) => Some(tokens.clone()),
        Some(openai::Prompt::TokenLists(lists)) => lists.first().cloned(),
        None => None,
    };
    if let Some(tokens) = ready {
        return hashed(&tokens, view, blocks);
    }
    let quads = text.as_bytes().chunks_exact(BYTES_PER_TOKEN);
    let tokens: Vec<TokenId> =
        quads.map(|quad| TokenId::from_le_bytes([quad[0], quad[1], quad[2], quad[3]])).collect();
    let salt = format!("{TEXT_NAMESPACE} {}", view.cache_salt.as_deref().unwrap_or_default());
    let namespace = Namespace { lora_name: blocks.lora_name.as_deref(), cache_salt: Some(&salt) };
    let hashes = BlockHasher::new(blocks.size, namespace).sequence(&tokens);
    Prompt { tokens: tokens.len(), exact: false, blocks: hashes.into(), took: Took::default() }
}

#[cfg(test)]
mod tests;
