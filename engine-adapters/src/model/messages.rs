//! Messages and tools as vLLM hands them to a template, which is not quite as a client sends them.
//!
//! Templates see what the engine's server made of a request. Whoever renders the same prompt elsewhere has to
//! make the same of it, or the tokens differ and nothing is ever found in the cache.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::TemplateError;

type Message = Map<String, Value>;

/// Messages with their content as the template wants it: a text, or a list of parts when it walks them.
/// Borrowed when there was nothing to change.
pub(super) fn normalized(
    messages: &[Message],
    wants_parts: bool,
) -> Result<Cow<'_, [Message]>, TemplateError> {
    let fine = |message: &Message| {
        let content = match message.get("content") {
            Some(Value::String(_)) => !wants_parts,
            _ => false,
        };
        content && !message.contains_key("tool_calls")
    };
    if messages.iter().all(fine) {
        return Ok(Cow::Borrowed(messages));
    }
    let mut messages = messages.to_vec();
    for (at, message) in messages.iter_mut().enumerate() {
        let content = message.get_mut("content").map_or(Value::Null, Value::take);
        let content = if wants_parts { parts(content) } else { text(at, content)? };
        message.insert("content".to_owned(), content);
        parse_arguments(message);
    }
    Ok(Cow::Owned(messages))
}

/// One text of whatever the content is.
fn text(message: usize, content: Value) -> Result<Value, TemplateError> {
    let parts = match content {
        Value::Null => return Ok("".into()),
        Value::Array(parts) => parts,
        content => return Ok(content),
    };
    let text = |(part, value): (usize, &Value)| match value {
        Value::String(text) => Ok(text.clone()),
        value => match value.get("text").and_then(Value::as_str) {
            Some(text) => Ok(text.to_owned()),
            None => {
                let kind = value.get("type").and_then(Value::as_str).unwrap_or("unknown").to_owned();
                Err(TemplateError::NotText { message, part, kind })
            }
        },
    };
    let texts: Vec<String> = parts.iter().enumerate().map(text).collect::<Result<_, _>>()?;
    Ok(texts.join("\n").into())
}

/// A list of parts of whatever the content is.
fn parts(content: Value) -> Value {
    let part = |text: Value| json!({"type": "text", "text": text});
    match content {
        Value::Null => json!([]),
        Value::Array(parts) => {
            parts.into_iter().map(|value| if value.is_string() { part(value) } else { value }).collect()
        }
        content => json!([part(content)]),
    }
}

/// An assistant's calls carry their arguments as JSON in a text; templates want what it says.
fn parse_arguments(message: &mut Message) {
    let Some(calls) = message.get_mut("tool_calls") else { return };
    match calls.as_array_mut() {
        Some(calls) if !calls.is_empty() => {
            for call in calls {
                let Some(arguments) =
                    call.get_mut("function").and_then(|function| function.get_mut("arguments"))
                else {
                    continue;
                };
                if let Some(text) = arguments.as_str() {
                    *arguments = serde_json::from_str(text).unwrap_or_else(|_| json!({}));
                }
            }
        }
        // As if there were none.
        _ => {
            message.remove("tool_calls");
        }
    }
}

/// Tools with every field there is, in one order.
pub(super) fn normalized_tools(tools: &[Value]) -> Vec<Value> {
    tools.iter().map(tool).collect()
}

fn tool(tool: &Value) -> Value {
    let Some(function) = tool.get("function").and_then(Value::as_object) else { return tool.clone() };
    let mut ordered = Map::new();
    for field in ["name", "description", "parameters"] {
        ordered.insert(field.to_owned(), function.get(field).cloned().unwrap_or(Value::Null));
    }
    let rest =
        function.iter().filter(|(field, _)| !matches!(field.as_str(), "name" | "description" | "parameters"));
    ordered.extend(rest.map(|(field, value)| (field.clone(), value.clone())));
    let kind = tool.get("type").cloned().unwrap_or_else(|| "function".into());
    let mut whole = Map::from_iter([("type".to_owned(), kind), ("function".to_owned(), ordered.into())]);
    let rest = tool
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(field, _)| !matches!(field.as_str(), "type" | "function"));
    whole.extend(rest.map(|(field, value)| (field.clone(), value.clone())));
    whole.into()
}
