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

use super::messages;
use super::python_json::{JsonStyle, MOST_INDENT};

/// A conversation to be rendered.
#[derive(Clone, Debug, Serialize)]
pub struct ChatPrompt<'a> {
    pub messages: &'a [Map<String, serde_json::Value>],
    pub tools: Option<&'a [serde_json::Value]>,
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
    #[error("the chat template takes more than {MOST_STEPS} steps, expected an end")]
    Endless,
    #[error("messages[{message}].content[{part}] has type `{kind}`, expected `text`")]
    NotText { message: usize, part: usize, kind: String },
    #[error("continue_final_message: the last message has no text, or the template does not render it")]
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

/// Steps a template may take for one prompt, about a second's worth: a thousand times what real ones take for a
/// conversation of a hundred messages. Loops within loops would otherwise keep a thread for hours.
const MOST_STEPS: u64 = 20_000_000;

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
        environment.set_fuel(Some(MOST_STEPS));
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

    /// A text as the template of a model directory.
    #[cfg(fuzzing)]
    pub fn of_text(text: &str) -> Result<Self, TemplateError> {
        Self::new(&text.into(), [("bos_token".to_owned(), "<s>".to_owned())].into())
    }

    pub fn render(&self, prompt: &ChatPrompt<'_>) -> Result<String, TemplateError> {
        if prompt.continue_final_message && prompt.add_generation_prompt {
            return Err(TemplateError::ContinuesAndOpens);
        }
        let mut messages = messages::normalized(prompt.messages, self.wants_parts)?;
        if prompt.continue_final_message {
            mark_last(messages.to_mut())?;
        }
        let tools = prompt.tools.map(messages::normalized_tools);
        let shown = ChatPrompt { messages: &messages, tools: tools.as_deref(), ..prompt.clone() };
        let name = if self.has_tool_template && tools.is_some() { TOOL_USE } else { DEFAULT };
        let template = self.environment.get_template(name).map_err(|error| jinja_error(&error))?;
        // What the request brings may shadow a special token, as keyword arguments do in Python.
        let context = minijinja::context! { ..Value::from(Serde(&shown)), ..self.special_tokens.clone() };
        let text = template.render(context).map_err(|error| jinja_error(&error))?;
        if prompt.continue_final_message { up_to_mark(text) } else { Ok(text) }
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("special_tokens", &self.special_tokens).finish_non_exhaustive()
    }
}

/// Put behind the last message to find its end in the rendered text. The space tells whether the template trims.
const LAST_MARK: &str = "\u{2}last message ends here\u{2} ";

fn mark_last(messages: &mut [Map<String, serde_json::Value>]) -> Result<(), TemplateError> {
    let content = messages.last_mut().and_then(|message| message.get_mut("content"));
    let text = match content {
        Some(serde_json::Value::Array(parts)) => parts.last_mut().and_then(|part| part.get_mut("text")),
        content => content,
    };
    match text {
        Some(serde_json::Value::String(text)) if !text.is_empty() => {
            text.push_str(LAST_MARK);
            Ok(())
        }
        _ => Err(TemplateError::NothingToContinue),
    }
}

/// The text up to the end of the last message, so that the answer goes on from there.
fn up_to_mark(mut text: String) -> Result<String, TemplateError> {
    let at = text.rfind(LAST_MARK.trim_end()).ok_or(TemplateError::NothingToContinue)?;
    let kept = text[at..].starts_with(LAST_MARK);
    text.truncate(at);
    // A template that trims messages would have trimmed this one.
    Ok(if kept { text } else { text.trim_end().to_owned() })
}

/// Whether a template loops over a message's content, as those for several media do.
fn walks_content(template: &str) -> bool {
    let tags = || template.split("{%").skip(1).filter_map(|rest| Some(rest.split_once("%}")?.0));
    // `for NAME in WHAT`, and what is left of the tag after WHAT's first word.
    let loops = || {
        tags().filter_map(|tag| {
            let tag = tag.trim_matches(['-', '+', ' ', '\n', '\t']);
            let (name, of) = tag.strip_prefix("for ")?.split_once(" in ")?;
            Some((name.trim(), of.trim()))
        })
    };
    // Messages go by whatever name the template gives them; content may have been given a name of its own.
    let of_messages = |of: &str| {
        of.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word.ends_with("messages"))
    };
    let messages = loops().filter(|(_, of)| of_messages(of)).map(|(name, _)| name);
    let contents: Vec<String> = messages
        .flat_map(|name| {
            [format!("{name}.content"), format!("{name}['content']"), format!("{name}[\"content\"]")]
        })
        .chain(["content".to_owned()])
        .collect();
    loops().any(|(_, of)| {
        contents.iter().any(|content| {
            let rest = of.strip_prefix(content.as_str());
            // `content.split(...)` and the like make lists of texts.
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || "_.([|".contains(c)))
        })
    })
}

/// `{% generation %}` marks the assistant's tokens for training and means nothing here.
fn without_generation_marks(template: &str) -> String {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(start) = rest.find("{%") {
        let Some(end) = rest[start + 2..].find("%}").map(|end| start + end + 4) else { break };
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
    if error.kind() == ErrorKind::OutOfFuel {
        return TemplateError::Endless;
    }
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
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, "tojson of something undefined"));
    }
    let style = JsonStyle {
        indent: options.get("indent")?,
        separators: options.get::<Option<Vec<String>>>("separators")?,
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        // transformers' own default, unlike Python's.
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    if let Some(indent) = style.indent.filter(|indent| *indent > MOST_INDENT) {
        let message = format!("tojson's indent is {indent}, expected at most {MOST_INDENT}");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    style
        .write(value)
        .map(Value::from_safe_string)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}
