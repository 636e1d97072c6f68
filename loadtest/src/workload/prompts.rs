//! Prompts of a file: a line each, as text or as JSON.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::client::{Message, Role};

#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    pub topic: Arc<str>,
    pub messages: Vec<Message>,
    pub max_tokens: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    #[serde(default, alias = "text")]
    prompt: Option<String>,
    #[serde(default)]
    messages: Option<Vec<Message>>,
    #[serde(default)]
    max_tokens: Option<usize>,
    #[serde(default)]
    topic: Option<String>,
}

/// Lines that begin with `{` are JSON: {"prompt": "…"} or {"messages": […]}, with max_tokens and topic if you like.
pub fn read_prompts(path: &Path) -> anyhow::Result<Vec<Prompt>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("prompts {}", path.display()))?;
    let mut prompts = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let at = || format!("prompts {}, line {}", path.display(), number + 1);
        let topic = |named: Option<String>| named.unwrap_or_else(|| format!("prompt {}", number + 1)).into();
        let user = |content: String| vec![Message { role: Role::User, content }];
        if !line.trim_start().starts_with('{') {
            prompts.push(Prompt { topic: topic(None), messages: user(line.to_owned()), max_tokens: None });
            continue;
        }
        let read: Line = serde_json::from_str(line).with_context(at)?;
        let messages = match (read.prompt, read.messages) {
            (Some(prompt), None) => user(prompt),
            (None, Some(messages)) if !messages.is_empty() => messages,
            _ => anyhow::bail!("{}: expected either a prompt or messages", at()),
        };
        ensure!(read.max_tokens != Some(0), "{}: `max_tokens` is 0, expected 1 or more", at());
        prompts.push(Prompt { topic: topic(read.topic), messages, max_tokens: read.max_tokens });
    }
    ensure!(!prompts.is_empty(), "prompts {}: no line in it", path.display());
    Ok(prompts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_text_or_json_and_refused_by_number() {
        let path = std::env::temp_dir().join(format!("kvlane-prompts-{}.jsonl", std::process::id()));
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_prompts(&path)
        };
        let prompts = read(
            "Hello there\n\n{\"prompt\": \"Hi\", \"max_tokens\": 7, \"topic\": \"greetings\"}\n\
             {\"messages\": [{\"role\": \"system\", \"content\": \"Be brief\"}, {\"role\": \"user\", \"content\": \"Hi\"}]}",
        )
        .unwrap();
        assert_eq!(prompts.len(), 3);
        assert_eq!(
            (&*prompts[0].topic, prompts[0].messages[0].content.as_str()),
            ("prompt 1", "Hello there")
        );
        assert_eq!((&*prompts[1].topic, prompts[1].max_tokens), ("greetings", Some(7)));
        assert_eq!(prompts[2].messages.len(), 2);
        for (wrong, says) in [
            ("", "no line in it"),
            ("ok\n{\"promt\": 1}", "line 2: unknown field `promt`"),
            ("{}", "line 1: expected either a prompt or messages"),
            ("{\"prompt\": \"a\", \"max_tokens\": 0}", "`max_tokens` is 0"),
        ] {
            let refused = format!("{:#}", read(wrong).unwrap_err());
            assert!(refused.contains(says), "{wrong}: {refused}");
        }
        std::fs::remove_file(path).unwrap();
    }
}
