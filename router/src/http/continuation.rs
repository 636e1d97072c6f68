//! Who goes on with an answer that broke off, and what he is asked.
//!
//! A chat is gone on with by showing the worker what was said as a last message that is to be continued; a completion by
//! putting it behind the prompt, as tokens where they are known. The chat template decides what a worker makes of that:
//! where it would not put the text back just as it was, nobody is asked.

use std::sync::Arc;

use hyper::HeaderMap;
use kvlane_engine_adapters::engine_facts::Engine;
use kvlane_engine_adapters::model::Model;
use kvlane_engine_adapters::openai::{GenerateRequest, Logprobs, Prompt};
use kvlane_engine_adapters::process::since_1970;
use kvlane_indexer::TokenId;
use serde_json::{Map, Value, json};

use super::completions::prompt;
use crate::app::Router;
use crate::discovery::Served;
use crate::error::RouterError;
use crate::openai::{ClientRequest, Endpoint, Imposed};
use crate::preprocess::Words;
use crate::proxy::{Errand, Expects, Ledger, Payload, Resume, Resumed, Resuming, Resumption, Told};
use crate::scheduling::Demand;
use crate::telemetry::RequestId;

/// One request's right to be gone on with.
#[derive(Clone, Debug)]
pub(super) struct Continuation {
    router: Arc<Router>,
    request: Arc<ClientRequest>,
    headers: HeaderMap,
    model: String,
    session: Option<u64>,
    expects: Expects,
    id: RequestId,
    imposed: Option<Arc<Imposed>>,
    /// How often it may still be.
    left: usize,
    /// Workers that did not come to an end.
    tried: Vec<u64>,
}

impl Continuation {
    /// None where it is not wanted, or the answer is not streamed.
    pub(super) fn of(
        router: &Arc<Router>,
        request: &Arc<ClientRequest>,
        headers: &HeaderMap,
        session: Option<u64>,
        expects: Expects,
        ledger: &Ledger,
    ) -> Option<Box<dyn Resume>> {
        let left = router.config.proxy.continuations;
        (left > 0 && request.streams()).then(|| {
            Box::new(Self {
                router: router.clone(),
                request: request.clone(),
                headers: headers.clone(),
                model: ledger.meter.model().to_owned(),
                session,
                expects,
                id: ledger.id.clone(),
                imposed: ledger.pass.as_ref().map(|pass| pass.key().imposed()),
                left,
                tried: Vec::new(),
            }) as Box<dyn Resume>
        })
    }

    async fn go_on(self, told: Told) -> Result<Resumption, RouterError> {
        let router = &self.router;
        let served = router.served(Some(&self.model), None)?;
        let mut tried = self.tried;
        let asked = if told.text.is_empty() {
            Asked { request: self.request.clone(), before: 0, repeats: String::new() }
        } else {
            let (request, words) = (self.request.clone(), served.group.words.clone());
            let imposed = self.imposed.clone();
            let made = router
                .preprocessor
                .run(request.bytes.len(), move || Asked::after(&request, &told, &words, imposed.as_deref()));
            match made.await?.map_err(|why| RouterError::bad_request(None, why))? {
                Next::Ask(asked) => asked,
                Next::Nothing { tokens } => {
                    let prompt = prompt(router, &self.request, &served).await?;
                    return Ok(Resumption::Finished(last_events(&self.request, prompt.tokens, tokens)));
                }
            }
        };
        let prompt = prompt(router, &asked.request, &served).await?;
        let demand = Demand {
            blocks: prompt.blocks,
            prompt_tokens: prompt.tokens,
            block_tokens: served.group.block_size.tokens(),
            session: self.session,
            room: Some(served.group.room.clone()),
            streamed: true,
            arrived: router.scheduler.time(tokio::time::Instant::now()),
        };
        let overlap = router.index.overlap(&demand.blocks, router.clock.tick());
        // TensorRT-LLM has no way to be told that a message goes on.
        if asked.before > 0 && asked.request.endpoint == Endpoint::Chat {
            let deaf = served.workers.iter().filter(|worker| worker.about().engine == Engine::Trtllm);
            tried.extend(deaf.map(|worker| worker.instance));
        }
        let placement = router.proxy.place_elsewhere(&demand, &overlap, &served, &router.sight, &tried);
        let placement = placement.ok_or_else(|| no_other(&served))?;
        let payload = Payload::Generate(asked.request.clone());
        let errand = Errand {
            payload: &payload,
            headers: &self.headers,
            served: served.clone(),
            demand: &demand,
            overlap,
            placement,
            expects: self.expects,
            sight: &router.sight,
            id: &self.id,
        };
        let obtained = router.proxy.obtain(errand, &mut tried).await.map_err(|(error, _)| error)?;
        let drops_usage = asked.request.adds_usage(obtained.engine());
        let resumed = Resumed::new(obtained, asked.before, asked.repeats, drops_usage);
        resumed.map(|resumed| Resumption::By(Box::new(resumed))).ok_or(RouterError::Internal)
    }
}

fn no_other(served: &Served) -> RouterError {
    RouterError::NoWorker { model: served.name.clone(), why: "nobody else is there".to_owned() }
}

impl Resume for Continuation {
    fn resume(&mut self, told: Told, failed: u64) -> Result<Resuming, &'static str> {
        self.tried.push(failed);
        self.left =
            self.left.checked_sub(1).ok_or("it was continued as often as proxy.continuations allows")?;
        if let Some(why) = refusal(&self.request, &told) {
            return Err(why);
        }
        Ok(Box::pin(self.clone().go_on(told)))
    }
}

/// Fields that make an engine say something else than text as it comes, each with what it says.
const MORE_THAN_TEXT: [(&str, &str); 9] = [
    ("response_format", "its form is prescribed"),
    ("structured_outputs", "its form is prescribed"),
    ("guided_json", "its form is prescribed"),
    ("guided_regex", "its form is prescribed"),
    ("guided_choice", "its form is prescribed"),
    ("guided_grammar", "its form is prescribed"),
    ("functions", "the request asks for functions"),
    ("use_beam_search", "the request asks for several choices"),
    ("best_of", "the request asks for several choices"),
];

/// Why an answer that began like this cannot be gone on with.
fn refusal(request: &ClientRequest, told: &Told) -> Option<&'static str> {
    let view = &request.view;
    let several = match &view.prompt {
        Some(Prompt::Texts(texts)) => texts.len() > 1,
        Some(Prompt::TokenLists(lists)) => lists.len() > 1,
        _ => false,
    };
    if several || view.n.is_some_and(|n| n != 1) {
        return Some("the request asks for several choices");
    }
    if told.text.is_empty() {
        // Nothing was said yet: it can be asked again as it is.
        return None;
    }
    let fields: Map<String, Value> = serde_json::from_slice(&request.bytes).unwrap_or_default();
    let set = |name: &str| match fields.get(name) {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Number(number)) => number.as_u64() != Some(1),
        Some(Value::Object(format)) if name == "response_format" => {
            format.get("type") != Some(&json!("text"))
        }
        Some(_) => true,
    };
    let asks_logprobs = !matches!(view.logprobs, None | Some(Logprobs::Asked(false)));
    [
        (view.tools.as_ref().is_some_and(|tools| !tools.is_empty()), "the request asks for tools"),
        (asks_logprobs || view.prompt_logprobs.is_some(), "the request asks for log-probabilities"),
        (view.echo == Some(true), "the request asks for its prompt"),
        (view.return_token_ids == Some(true), "the request asks for token ids"),
        (view.ready_tokens().is_some(), "its prompt came as tokens of a chat"),
        (view.truncate_prompt_tokens.is_some(), "its prompt is cut by the engine"),
    ]
    .into_iter()
    .chain(MORE_THAN_TEXT.map(|(name, why)| (set(name), why)))
    .find_map(|(found, why)| found.then_some(why))
}

/// What is asked for the rest of an answer.
#[derive(Debug)]
struct Asked {
    request: Arc<ClientRequest>,
    /// Tokens of the answer that are part of the prompt now.
    before: u64,
    /// Blanks that were said and are not in the prompt, because the template would not keep them.
    repeats: String,
}

#[derive(Debug)]
enum Next {
    Ask(Asked),
    /// It has as many tokens as it may have.
    Nothing {
        tokens: u64,
    },
}

/// What completions are limited to when they do not say: OpenAI's number, and vLLM's.
const COMPLETION_TOKENS: i64 = 16;

impl Asked {
    fn after(
        request: &ClientRequest,
        told: &Told,
        words: &Words,
        imposed: Option<&Imposed>,
    ) -> Result<Next, &'static str> {
        const UNREADABLE: &str = "its request could not be read again";
        let model = match words {
            Words::Local { model, .. } => Some(model),
            Words::Engine | Words::Text => None,
        };
        let encoded = match model {
            Some(model) => {
                Some(model.tokenizer.encode(&told.text, false).map_err(|_| "its text has no tokens")?)
            }
            None => None,
        };
        let before = encoded.as_ref().map_or(0, |tokens| tokens.len() as u64).max(told.tokens);
        let mut fields: Map<String, Value> =
            serde_json::from_slice(&request.bytes).map_err(|_| UNREADABLE)?;
        let mut repeats = String::new();
        let view = &request.view;
        if view.messages.is_some() {
            let kept = kept_by_template(view, &told.text, model)?;
            told.text[kept..].clone_into(&mut repeats);
            let Some(Value::Array(messages)) = fields.get_mut("messages") else { return Err(UNREADABLE) };
            append(messages, &told.text[..kept], view.continues())
                .ok_or("its last message is more than a text")?;
            fields.insert("continue_final_message".to_owned(), true.into());
            fields.insert("add_generation_prompt".to_owned(), false.into());
        } else {
            let prompt =
                longer_prompt(view, &told.text, model, encoded).ok_or("its prompt cannot be lengthened")?;
            fields.insert("prompt".to_owned(), prompt);
            fields.entry("max_tokens").or_insert(COMPLETION_TOKENS.into());
        }
        for name in ["max_tokens", "max_completion_tokens"] {
            let Some(most) = fields.get(name).and_then(Value::as_i64) else { continue };
            let left = most.saturating_sub(i64::try_from(before).unwrap_or(i64::MAX));
            if left <= 0 {
                // Counted again it may look like more.
                return Ok(Next::Nothing { tokens: most.max(0) as u64 });
            }
            fields.insert(name.to_owned(), left.into());
        }
        if let Some(least) = fields.get("min_tokens").and_then(Value::as_u64) {
            fields.insert("min_tokens".to_owned(), least.saturating_sub(before).into());
        }
        let bytes = Value::from(fields).to_string();
        let request =
            ClientRequest::read_imposed(request.endpoint, bytes.into(), imposed).map_err(|_| UNREADABLE)?;
        Ok(Next::Ask(Self { request: Arc::new(request), before, repeats }))
    }
}

/// Puts the text at the end of a chat: as a message, or in the one that is being continued already.
fn append(messages: &mut Vec<Value>, text: &str, continues: bool) -> Option<()> {
    if continues {
        let Value::String(content) = messages.last_mut()?.get_mut("content")? else { return None };
        content.push_str(text);
    } else {
        messages.push(json!({ "role": "assistant", "content": text }));
    }
    Some(())
}

/// How much of the text a chat's template puts back as it was. Blanks at its end may be lost; anything else must not be.
fn kept_by_template(
    view: &GenerateRequest,
    text: &str,
    model: Option<&Arc<Model>>,
) -> Result<usize, &'static str> {
    let Some(template) = model.and_then(|model| model.template.as_ref()) else { return Ok(text.len()) };
    let now = since_1970().as_secs() as i64;
    let render = |view: &GenerateRequest| template.render(&view.chat_prompt(now)?).ok();
    let before = render(view).ok_or("its prompt could not be rendered again")?;
    for kept in [text.len(), text.trim_end().len()] {
        let mut longer = view.clone();
        let mut messages: Vec<Value> =
            longer.messages.take().into_iter().flatten().map(Value::from).collect();
        append(&mut messages, &text[..kept], view.continues())
            .ok_or("its last message is more than a text")?;
        let objects = messages.into_iter().filter_map(|message| match message {
            Value::Object(message) => Some(message),
            _ => None,
        });
        longer.messages = Some(objects.collect());
        (longer.continue_final_message, longer.add_generation_prompt) = (Some(true), Some(false));
        if render(&longer).is_some_and(|after| after.strip_prefix(&before) == Some(&text[..kept])) {
            return Ok(kept);
        }
    }
    Err("its chat template does not put an answer back as it was")
}

/// The prompt with the answer so far behind it: as tokens where they are known, else as text.
fn longer_prompt(
    view: &GenerateRequest,
    text: &str,
    model: Option<&Arc<Model>>,
    encoded: Option<Vec<TokenId>>,
) -> Option<Value> {
    let before: Vec<TokenId> = match (view.prompt.as_ref()?, model) {
        (Prompt::Tokens(tokens), _) => tokens.clone(),
        (Prompt::TokenLists(lists), _) => lists.first()?.clone(),
        (Prompt::Text(prompt), None) => return Some(format!("{prompt}{text}").into()),
        (Prompt::Texts(prompts), None) => return Some(format!("{}{text}", prompts.first()?).into()),
        (Prompt::Text(prompt), Some(model)) => prompt_tokens(view, prompt, model)?,
        (Prompt::Texts(prompts), Some(model)) => prompt_tokens(view, prompts.first()?, model)?,
    };
    Some(json!([before, encoded?].concat()))
}

fn prompt_tokens(view: &GenerateRequest, prompt: &str, model: &Model) -> Option<Vec<TokenId>> {
    model.tokenizer.encode(prompt, view.add_special_tokens.unwrap_or(true)).ok()
}

/// How an answer ends that has as many tokens as it may have.
fn last_events(request: &ClientRequest, prompt_tokens: usize, answer_tokens: u64) -> Vec<Value> {
    let choice = match request.endpoint {
        Endpoint::Chat => json!({"index": 0, "delta": {}, "logprobs": null, "finish_reason": "length"}),
        _ => json!({"index": 0, "text": "", "logprobs": null, "finish_reason": "length"}),
    };
    let mut events = vec![json!({ "choices": [choice] })];
    if request.wants_usage() {
        let usage = json!({
            "prompt_tokens": prompt_tokens, "completion_tokens": answer_tokens,
            "total_tokens": prompt_tokens as u64 + answer_tokens,
        });
        events.push(json!({ "choices": [], "usage": usage }));
    }
    events
}
