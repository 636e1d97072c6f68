//! From a request's body to prompts with their answers.

use std::sync::Arc;

use kvlane_indexer::TokenId;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Map, Value};
use xxhash_rust::xxh3::Xxh3;

use super::http::Refusal;
use super::options::WorkerOptions;
use crate::model::Model;
use crate::openai::{GenerateRequest, Logprobs, Prompt};
use crate::sim::{Lexicon, Piece};

/// Which of the two endpoints was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Chat,
    Completion,
}

/// One prompt and what the model will say to it.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) prompt: Arc<[TokenId]>,
    /// Which of its prompt's choices this is.
    pub(super) choice: u64,
    /// One per token. A token without a text of its own (the end of an answer) has an empty one.
    pub(super) answer: Vec<Piece>,
    pub(super) finish: &'static str,
    /// The text that ended the answer, when one of the request's did.
    pub(super) stop: Option<String>,
    pub(super) tool: Option<ToolCall>,
}

/// The function an answer calls; the answer's text is its arguments.
#[derive(Clone, Debug)]
pub(super) struct ToolCall {
    pub(super) id: String,
    pub(super) name: String,
}

/// A model that answers.
#[derive(Debug)]
pub(super) struct Author {
    pub(super) model: Model,
    pub(super) lexicon: Lexicon,
    pub(super) max_len: usize,
}

/// How many choices a request may ask for; vLLM's own limit.
const MAX_CHOICES: i64 = 16_384;
/// What `/v1/completions` gives when no limit is named.
const COMPLETION_DEFAULT_TOKENS: usize = 16;
/// Tokens that all choices of one request may have together: each is kept until it is sent.
const MAX_PLANNED_TOKENS: usize = 1 << 20;
/// Tokens of an answer that can be gone on with.
const MOST_SAID: usize = 1 << 14;
/// Longest arguments a simulated tool call has, in bytes.
const MAX_ARGUMENTS: usize = 4096;

impl Author {
    /// Everything a request asks for, or why it is refused.
    pub(super) fn plan(
        &self,
        kind: Kind,
        request: &GenerateRequest,
        options: &WorkerOptions,
        now: i64,
    ) -> Result<Vec<Plan>, Refusal> {
        check(request)?;
        let choices = match request.n {
            Some(n) if !(1..=MAX_CHOICES).contains(&n) => {
                let message =
                    format!("n must be between 1 and {MAX_CHOICES}, got {n}. (parameter=n, value={n})");
                return Err(Refusal::bad_request(Some("n"), message));
            }
            n => n.unwrap_or(1) as u64,
        };
        let prompts = match kind {
            Kind::Chat => vec![self.chat_prompt(request, now)?],
            Kind::Completion => self.completion_prompts(request)?,
        };
        let mut plans = Vec::new();
        let mut planned = 0;
        for prompt in prompts {
            let limit = self.limit(kind, request, prompt.len())?;
            let prompt: Arc<[TokenId]> = prompt.into();
            for choice in 0..choices {
                let plan = self.answer(kind, request, &prompt, limit, choice, options)?;
                planned += plan.answer.len();
                if planned > MAX_PLANNED_TOKENS {
                    let message = format!("all choices together have more than {MAX_PLANNED_TOKENS} tokens");
                    return Err(Refusal::bad_request(Some("n"), message));
                }
                plans.push(plan);
            }
        }
        Ok(plans)
    }

    /// The tokens of a conversation.
    pub(super) fn chat_prompt(&self, request: &GenerateRequest, now: i64) -> Result<Vec<TokenId>, Refusal> {
        let prompt = request.chat_prompt(now);
        let prompt =
            prompt.ok_or_else(|| Refusal::invalid_body("body.messages", "missing", "Field required"))?;
        if let Some(tokens) = request.ready_tokens() {
            return self.known(tokens.to_vec());
        }
        let Some(template) = &self.model.template else {
            let message = format!("model `{}` has no chat template, use /v1/completions", self.model.name);
            return Err(Refusal::bad_request(None, message));
        };
        let text = template
            .render(&prompt)
            .map_err(|error| Refusal::bad_request(Some("messages"), error.to_string()))?;
        self.encode(&text, request.add_special_tokens.unwrap_or(false))
    }

    fn completion_prompts(&self, request: &GenerateRequest) -> Result<Vec<Vec<TokenId>>, Refusal> {
        let none = || Refusal::bad_request(None, "You must pass at least one prompt");
        let mark = request.add_special_tokens.unwrap_or(true);
        let prompts = match request.prompt.clone() {
            None => return Err(Refusal::invalid_body("body.prompt", "missing", "Field required")),
            Some(Prompt::Text(text)) => vec![self.encode(&text, mark)?],
            Some(Prompt::Texts(texts)) => {
                texts.iter().map(|text| self.encode(text, mark)).collect::<Result<_, _>>()?
            }
            Some(Prompt::Tokens(tokens)) => vec![self.known(tokens)?],
            Some(Prompt::TokenLists(lists)) => {
                lists.into_iter().map(|list| self.known(list)).collect::<Result<_, _>>()?
            }
        };
        if prompts.is_empty() || prompts.iter().any(Vec::is_empty) { Err(none()) } else { Ok(prompts) }
    }

    pub(super) fn encode(&self, text: &str, mark: bool) -> Result<Vec<TokenId>, Refusal> {
        self.model.tokenizer.encode(text, mark).map_err(|error| Refusal::bad_request(None, error.to_string()))
    }

    /// Tokens a request brought ready-made.
    pub(super) fn known(&self, tokens: Vec<TokenId>) -> Result<Vec<TokenId>, Refusal> {
        match tokens.iter().find(|token| **token as usize >= self.model.tokenizer.vocabulary()) {
            Some(token) => Err(Refusal::bad_request(None, format!("Token id {token} is out of vocabulary"))),
            None => Ok(tokens),
        }
    }

    /// How long an answer to a prompt of `prompt` tokens may be.
    fn limit(&self, kind: Kind, request: &GenerateRequest, prompt: usize) -> Result<usize, Refusal> {
        let max = self.max_len;
        if prompt >= max {
            let why = if prompt > max { "exceeds this limit even without" } else { "leaves no room for" };
            let message = format!(
                "This model's maximum context length is {max} tokens. However, your prompt contains {prompt} input \
                 tokens, which {why} any output tokens. Please reduce the length of the input prompt. \
                 (parameter=input_tokens, value={prompt})"
            );
            return Err(Refusal::bad_request(Some("input_tokens"), message));
        }
        let Some((name, asked)) = request.limit() else {
            let room = max - prompt;
            return Ok(if kind == Kind::Completion { COMPLETION_DEFAULT_TOKENS.min(room) } else { room });
        };
        let refuse = |message: String| {
            Err(Refusal::bad_request(Some(name), format!("{message} (parameter={name}, value={asked})")))
        };
        let Some(limit) = usize::try_from(asked).ok().filter(|limit| *limit > 0) else {
            return refuse(format!("{name} must be at least 1, got {asked}."));
        };
        if limit > max {
            return refuse(format!(
                "{name}={limit} cannot be greater than max_model_len={max}. Please request fewer output tokens."
            ));
        }
        if prompt + limit > max {
            return refuse(format!(
                "This model's maximum context length is {max} tokens. However, you requested {limit} output tokens and \
                 your prompt contains {prompt} input tokens. Please reduce one of them."
            ));
        }
        Ok(limit)
    }

    /// What the model says: the same to the same prompt, unless a seed is given.
    fn answer(
        &self,
        kind: Kind,
        request: &GenerateRequest,
        prompt: &Arc<[TokenId]>,
        limit: usize,
        choice: u64,
        options: &WorkerOptions,
    ) -> Result<Plan, Refusal> {
        // What was said of an answer already is gone on with: asked twice, a model says the same.
        let (seed, said) = self.said(prompt, request.seed, choice);
        if kind == Kind::Chat
            && let Some(plan) = self.tool_answer(request, prompt, limit, seed)?
        {
            return Ok(plan);
        }
        let natural = StdRng::seed_from_u64(seed)
            .random_range(options.answer_tokens.clone())
            .max(request.min_tokens.unwrap_or(0).saturating_add(said));
        let limit = limit + said;
        let ends = !request.ignore_eos.unwrap_or(false) && natural < limit;
        let mut answer = self.lexicon.answer(seed, if ends { natural } else { limit });
        if let Some(token) = self.lexicon.end().filter(|_| ends) {
            answer.push(Piece { token, text: String::new() });
        }
        let finish = if ends { "stop" } else { "length" };
        let mut plan = Plan { prompt: prompt.clone(), choice, answer, finish, stop: None, tool: None };
        plan.stop_at(request.stops());
        plan.answer.drain(..said.min(plan.answer.len()));
        Ok(plan)
    }

    /// What decides an answer, and how many of its tokens the prompt ends with.
    fn said(&self, prompt: &[TokenId], seed: Option<i64>, choice: u64) -> (u64, usize) {
        let seed = |prompt: &[TokenId]| {
            let mut hash = Xxh3::new();
            prompt.iter().for_each(|token| hash.update(&token.to_le_bytes()));
            [seed.unwrap_or(0).to_le_bytes(), choice.to_le_bytes()].iter().for_each(|part| hash.update(part));
            hash.digest()
        };
        let words = prompt.iter().rev().take(MOST_SAID).take_while(|token| self.lexicon.has(**token)).count();
        let is_beginning = |said: &usize| {
            let (before, said) = prompt.split_at(prompt.len() - said);
            let answer = || self.lexicon.answer(seed(before), said.len());
            self.lexicon.opens(said[0]) && answer().iter().map(|piece| &piece.token).eq(said)
        };
        let said = (1..=words).rev().filter(|said| *said < prompt.len()).find(is_beginning).unwrap_or(0);
        (seed(&prompt[..prompt.len() - said]), said)
    }

    /// An answer that calls a function, when the request insists on one.
    fn tool_answer(
        &self,
        request: &GenerateRequest,
        prompt: &Arc<[TokenId]>,
        limit: usize,
        seed: u64,
    ) -> Result<Option<Plan>, Refusal> {
        let tools = request.tools.as_deref().unwrap_or_default();
        let name_of = |tool: &Value| Some(tool.get("function")?.get("name")?.as_str()?.to_owned());
        let wanted = match &request.tool_choice {
            Some(Value::String(choice)) if choice == "required" => tools.first().and_then(name_of),
            Some(choice @ Value::Object(_)) => name_of(choice),
            _ => return Ok(None),
        };
        let tool = tools.iter().find(|tool| wanted.is_some() && name_of(tool) == wanted);
        let (Some(tool), Some(name)) = (tool, wanted) else {
            let message = "tool_choice asks for a function that is not among `tools`";
            return Err(Refusal::bad_request(Some("tool_choice"), message));
        };
        let properties = tool["function"]["parameters"]["properties"].as_object();
        let arguments = properties.map(|properties| {
            properties.iter().map(|(name, schema)| (name.clone(), sample(schema))).collect::<Map<_, _>>()
        });
        let text = Value::from(arguments.unwrap_or_default()).to_string();
        if text.len() > MAX_ARGUMENTS {
            let message = format!("`{name}` needs arguments of more than {MAX_ARGUMENTS} bytes");
            return Err(Refusal::bad_request(Some("tools"), message));
        }
        let mut answer = self.pieces(&text)?;
        let finish = if answer.len() < limit { "tool_calls" } else { "length" };
        answer.truncate(limit);
        if let Some(token) = self.lexicon.end().filter(|_| finish == "tool_calls") {
            answer.push(Piece { token, text: String::new() });
        }
        let tool = Some(ToolCall { id: format!("chatcmpl-tool-{seed:016x}"), name });
        Ok(Some(Plan { prompt: prompt.clone(), choice: 0, answer, finish, stop: None, tool }))
    }

    /// A short text token by token. A character over several tokens comes with the last of them.
    fn pieces(&self, text: &str) -> Result<Vec<Piece>, Refusal> {
        let tokens = self.encode(text, false)?;
        let mut said = 0;
        let piece = |(at, token): (usize, &TokenId)| {
            let so_far = self.model.tokenizer.decode(&tokens[..=at]).unwrap_or_default();
            let whole = so_far.trim_end_matches(char::REPLACEMENT_CHARACTER).len();
            let piece = so_far.get(said.min(whole)..whole).unwrap_or_default().to_owned();
            said = said.max(whole);
            Piece { token: *token, text: piece }
        };
        Ok(tokens.iter().enumerate().map(piece).collect())
    }
}

impl Plan {
    /// Ends the answer where the earliest of `stops` is complete, and leaves that text out.
    fn stop_at(&mut self, stops: &[String]) {
        let text: String = self.answer.iter().map(|piece| piece.text.as_str()).collect();
        let found =
            stops.iter().filter(|stop| !stop.is_empty()).filter_map(|stop| Some((text.find(stop)?, stop)));
        let Some((at, stop)) = found.min_by_key(|(at, stop)| at + stop.len()) else { return };
        let mut said = 0;
        let mut tokens = 0;
        for piece in &mut self.answer {
            let (start, end) = (said, said + piece.text.len());
            (said, tokens) = (end, tokens + 1);
            piece.text.truncate(at.saturating_sub(start));
            if end >= at + stop.len() {
                break;
            }
        }
        self.answer.truncate(tokens);
        (self.finish, self.stop) = ("stop", Some(stop.clone()));
    }
}

/// A value a schema allows.
fn sample(schema: &Value) -> Value {
    if let Some(first) = schema["enum"].as_array().and_then(|values| values.first()) {
        return first.clone();
    }
    match schema["type"].as_str() {
        Some("number" | "integer") => 1.into(),
        Some("boolean") => true.into(),
        Some("array") => Value::Array(Vec::new()),
        Some("object") => Value::Object(Map::new()),
        _ => "cache".into(),
    }
}

/// What vLLM refuses whatever the prompt is, and what the simulation cannot do.
fn check(request: &GenerateRequest) -> Result<(), Refusal> {
    if request.stream_options.is_some() && !request.streams() {
        let message = "Stream options can only be defined when `stream=True`. (parameter=stream_options)";
        return Err(Refusal::bad_request(Some("stream_options"), message));
    }
    if request.cache_salt.as_deref() == Some("") {
        let message = "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)";
        return Err(Refusal::bad_request(Some("cache_salt"), message));
    }
    if request.echo == Some(true) {
        return Err(Refusal::bad_request(Some("echo"), "the simulated engine does not echo prompts"));
    }
    Ok(())
}

/// Alternatives wanted for each token; none when no log-probabilities are.
pub(super) fn logprobs(request: &GenerateRequest) -> Option<usize> {
    match request.logprobs? {
        Logprobs::Asked(false) => None,
        Logprobs::Asked(true) => {
            Some(request.top_logprobs.and_then(|count| usize::try_from(count).ok()).unwrap_or(0))
        }
        Logprobs::Count(count) => Some(count),
    }
}
