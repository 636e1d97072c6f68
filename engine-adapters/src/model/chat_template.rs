//! A model's chat template, rendered as Hugging Face's `transformers` renders it.
//!
//! Templates are written for Jinja2 under Python. What they use of it beyond Jinja is here: string and dict
//! methods, `raise_exception`, `strftime_now`, and a `tojson` that spells JSON as Python does.

use std::collections::BTreeMap;
use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use serde::Serialize;
use serde_json::Map;

use super::python_json;

/// A conversation to be rendered.
#[derive(Clone, Debug, Serialize)]
pub struct ChatPrompt<'a> {
    pub messages: &'a [Map<String, serde_json::Value>],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<&'a [serde_json::Value]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documents: Option<&'a [serde_json::Value]>,
    /// Whether the prompt ends with the opening of the assistant's answer.
    pub add_generation_prompt: bool,
    /// Whether the last message is to be continued instead of closed.
    #[serde(skip)]
    pub continue_final_message: bool,
    /// More variables for the template (`chat_template_kwargs`).
    #[serde(flatten)]
    pub variables: Option<&'a Map<String, serde_json::Value>>,
    /// Seconds since 1970, for templates that write the date.
    #[serde(rename = "__now")]
    pub now: i64,
}

impl<'a> ChatPrompt<'a> {
    /// Messages to be answered, and nothing else.
    pub fn new(messages: &'a [Map<String, serde_json::Value>], now: i64) -> Self {
        Self {
            messages,
            tools: None,
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
            variables: None,
            now,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error("{0}")]
    Jinja(String),
    /// The template itself refused, by `raise_exception`.
    #[error("{0}")]
    Refused(String),
    #[error("messages[{message}].content[{part}] has type `{kind}`, expected `text`")]
    NotText { message: usize, part: usize, kind: String },
    #[error("continue_final_message: the last message's content does not appear in the rendered prompt")]
    NothingToContinue,
    #[error("continue_final_message and add_generation_prompt exclude each other, expected one of them")]
    ContinuesAndOpens,
    #[error(
        "chat_template is {found}, expected a text or a list of named templates with one called `default`"
    )]
    Shape { found: &'static str },
}

/// Compiled once, rendered for every request.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// `bos_token` and its like, by name.
    special_tokens: Value,
    has_tool_template: bool,
    /// Whether the template walks a message's content as a list of parts.
    wants_parts: bool,
}

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";
/// Marks a refusal by the template among Jinja's own errors.
const REFUSAL: &str = "\u{1}refused\u{1}";

impl ChatTemplate {
    /// From a template's text, or from a list of named ones.
    pub(crate) fn new(
        source: &serde_json::Value,
        special_tokens: BTreeMap<String, String>,
    ) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| jinja_error(&error))?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", to_json);

        let mut wants_parts = false;
        let mut add = |name: &str, text: &str| {
            wants_parts |= name == DEFAULT && walks_content(text);
            let text = without_generation_marks(text);
            environment.add_template_owned(name.to_owned(), text).map_err(|error| jinja_error(&error))
        };
        let mut has_tool_template = false;
        match source {
            serde_json::Value::String(text) => add(DEFAULT, text)?,
            serde_json::Value::Array(templates) => {
                for template in templates {
                    let field = |name| template.get(name).and_then(serde_json::Value::as_str);
                    let (Some(name), Some(text)) = (field("name"), field("template")) else { continue };
                    add(name, text)?;
                    has_tool_template |= name == TOOL_USE;
                }
                if environment.get_template(DEFAULT).is_err() {
                    return Err(TemplateError::Shape { found: "a list without `default`" });
                }
            }
            _ => return Err(TemplateError::Shape { found: "neither" }),
        }
        Ok(Self { environment, special_tokens: Value::from(special_tokens), has_tool_template, wants_parts })
    }

    pub fn render(&self, prompt: &ChatPrompt<'_>) -> Result<String, TemplateError> {
        if prompt.continue_final_message && prompt.add_generation_prompt {
            return Err(TemplateError::ContinuesAndOpens);
        }
        let messages = self.flatten(prompt.messages)?;
        let prompt =
            ChatPrompt { messages: messages.as_deref().unwrap_or(prompt.messages), ..prompt.clone() };
        let name = if self.has_tool_template && prompt.tools.is_some() { TOOL_USE } else { DEFAULT };
        let template = self.environment.get_template(name).map_err(|error| jinja_error(&error))?;
        // What the request brings may shadow a special token, as keyword arguments do in Python.
        let context = minijinja::context! { ..Value::from(Serde(&prompt)), ..self.special_tokens.clone() };
        let text = template.render(context).map_err(|error| jinja_error(&error))?;
        if prompt.continue_final_message { continued(text, prompt.messages) } else { Ok(text) }
    }

    /// Content given as parts becomes one text for templates that expect a text; none when nothing changes.
    fn flatten(
        &self,
        messages: &[Map<String, serde_json::Value>],
    ) -> Result<Option<Vec<Map<String, serde_json::Value>>>, TemplateError> {
        let parts = |message: &Map<_, _>| matches!(message.get("content"), Some(serde_json::Value::Array(_)));
        if self.wants_parts || !messages.iter().any(parts) {
            return Ok(None);
        }
        let mut messages = messages.to_vec();
        for (at, message) in messages.iter_mut().enumerate() {
            let Some(serde_json::Value::Array(parts)) = message.get("content") else { continue };
            let text = |(part, value): (usize, &serde_json::Value)| match value {
                serde_json::Value::String(text) => Ok(text.clone()),
                value => match (value.get("text").and_then(serde_json::Value::as_str), value.get("type")) {
                    (Some(text), _) => Ok(text.to_owned()),
                    (None, kind) => {
                        let kind = kind.and_then(serde_json::Value::as_str).unwrap_or("unknown").to_owned();
                        Err(TemplateError::NotText { message: at, part, kind })
                    }
                },
            };
            let text: Vec<_> = parts.iter().enumerate().map(text).collect::<Result<_, _>>()?;
            message.insert("content".to_owned(), text.join("\n").into());
        }
        Ok(Some(messages))
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("special_tokens", &self.special_tokens).finish_non_exhaustive()
    }
}

/// The text up to and with the last message's content, so that the answer goes on from there.
fn continued(mut text: String, messages: &[Map<String, serde_json::Value>]) -> Result<String, TemplateError> {
    let last = messages.last().and_then(|message| message.get("content")?.as_str());
    let last = last.map(str::trim).filter(|last| !last.is_empty()).ok_or(TemplateError::NothingToContinue)?;
    let at = text.rfind(last).ok_or(TemplateError::NothingToContinue)?;
    text.truncate(at + last.len());
    Ok(text)
}

/// Whether a template loops over a message's content, as those for several media do.
fn walks_content(template: &str) -> bool {
    template.split("{%").skip(1).filter_map(|rest| rest.split_once("%}")).any(|(tag, _)| {
        let tag = tag.trim_start_matches(['-', '+', ' ', '\n', '\t']);
        let Some((_, of)) = tag.strip_prefix("for ").and_then(|tag| tag.split_once(" in ")) else {
            return false;
        };
        let of = of.trim_start();
        ["message.content", "message['content']", "message[\"content\"]", "content"].iter().any(|name| {
            of.strip_prefix(name)
                .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        })
    })
}

/// `{% generation %}` marks the assistant's tokens for training and means nothing here.
fn without_generation_marks(template: &str) -> String {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(start) = rest.find("{%") {
        let Some(end) = rest[start..].find("%}").map(|end| start + end + 2) else { break };
        let tag = &rest[start + 2..end - 2];
        let word = tag.trim_matches(['-', '+', ' ', '\n', '\t']);
        if word == "generation" || word == "endgeneration" {
            text.push_str(&rest[..start]);
            // An empty block in its place trims whitespace as the mark would have.
            let (left, right) = (tag.starts_with('-'), tag.ends_with('-'));
            text.push_str(if left { "{%- if true %}" } else { "{% if true %}" });
            text.push_str(if right { "{% endif -%}" } else { "{% endif %}" });
        } else {
            text.push_str(&rest[..end]);
        }
        rest = &rest[end..];
    }
    text + rest
}

fn jinja_error(error: &Error) -> TemplateError {
    let detail = error.detail().unwrap_or_default();
    if let Some(refusal) = detail.strip_prefix(REFUSAL) {
        return TemplateError::Refused(refusal.to_owned());
    }
    TemplateError::Jinja(match error.line() {
        Some(line) => format!("{} at line {line}: {detail}", error.kind()),
        None => format!("{}: {detail}", error.kind()),
    })
}

fn raise_exception(message: &str) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, format!("{REFUSAL}{message}")))
}

/// The time the prompt is rendered, in UTC, as the format says.
fn strftime_now(state: &State<'_, '_>, format: &str) -> Result<String, Error> {
    let fail = |error: jiff::Error| Error::new(ErrorKind::InvalidOperation, error.to_string());
    let seconds = state.lookup("__now").and_then(|now| i64::try_from(now).ok()).unwrap_or_default();
    let now = jiff::Timestamp::from_second(seconds).map_err(fail)?.to_zoned(jiff::tz::TimeZone::UTC);
    jiff::fmt::strtime::format(format, &now).map_err(fail)
}

#[allow(clippy::needless_pass_by_value, reason = "a filter's signature")]
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Templates pass these two as Python has them; ours never escapes and never sorts.
    let _: (Option<bool>, Option<bool>) = (options.get("ensure_ascii")?, options.get("sort_keys")?);
    options.assert_all_used()?;
    python_json::dumps(value, indent)
        .map(Value::from_safe_string)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}
