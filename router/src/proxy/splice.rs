//! The second half of an answer, made to look as if the first half's worker had gone on.

use bytes::Bytes;
use serde_json::{Map, Value};

/// How the events of whoever goes on are changed.
#[derive(Debug)]
pub(super) struct Splice {
    /// What the first half's events all had.
    pub(super) identity: Map<String, Value>,
    /// Tokens of the answer that count as prompt there and as answer here.
    pub(super) before: u64,
    /// Whether the client knows who speaks.
    pub(super) opened: bool,
    /// What the text may begin with although the client has it already.
    pub(super) repeats: String,
}

impl Splice {
    /// An event as the client is to see it; none when it is not.
    pub(super) fn rewritten(&mut self, event: &Bytes) -> Option<Bytes> {
        let mut lines = event.split(|byte| *byte == b'\n');
        let data = lines.find_map(|line| line.strip_prefix(b"data:"));
        let Some(Ok(Value::Object(mut fields))) = data.map(serde_json::from_slice) else {
            return Some(event.clone());
        };
        for (name, value) in &self.identity {
            if let Some(field) = fields.get_mut(name) {
                field.clone_from(value);
            }
        }
        if let Some(Value::Object(usage)) = fields.get_mut("usage") {
            self.recount(usage);
        }
        let mut silent = fields.get("usage").is_none_or(Value::is_null) && !fields.contains_key("error");
        let mut opens = false;
        for choice in fields.get_mut("choices").and_then(Value::as_array_mut).into_iter().flatten() {
            let delta = choice.get_mut("delta").and_then(Value::as_object_mut);
            opens |= self.opened && delta.is_some_and(|delta| delta.shift_remove("role").is_some());
            let is_chat = choice.get("delta").is_some();
            let said = if is_chat { choice["delta"].get_mut("content") } else { choice.get_mut("text") };
            if let Some(Value::String(text)) = said {
                self.cut(text);
                silent &= text.is_empty();
            }
            silent &= choice["finish_reason"].is_null();
            silent &= choice["delta"]
                .as_object()
                .is_none_or(|delta| delta.iter().all(|(name, value)| name == "content" || value.is_null()));
        }
        // It only said who speaks.
        if opens && silent {
            return None;
        }
        Some(format!("data: {}\n\n", Value::from(fields)).into())
    }

    /// Takes away what was said before.
    fn cut(&mut self, text: &mut String) {
        while let Some(next) = self.repeats.chars().next() {
            match text.chars().next() {
                None => return,
                Some(first) if first == next => {
                    text.drain(..first.len_utf8());
                    self.repeats.drain(..first.len_utf8());
                }
                // It went on differently.
                Some(_) => self.repeats.clear(),
            }
        }
    }

    /// What was the prompt's there is the answer's here; both together are the same.
    fn recount(&self, usage: &mut Map<String, Value>) {
        let number = |usage: &Map<String, Value>, name: &str| usage.get(name).and_then(Value::as_u64);
        let prompt = number(usage, "prompt_tokens").map(|prompt| prompt.saturating_sub(self.before));
        let answer = number(usage, "completion_tokens").map(|answer| answer + self.before);
        for (name, count) in [("prompt_tokens", prompt), ("completion_tokens", answer)] {
            if let (Some(field), Some(count)) = (usage.get_mut(name), count) {
                *field = count.into();
            }
        }
        if let (Some(prompt), Some(Value::Object(details))) = (prompt, usage.get_mut("prompt_tokens_details"))
            && let Some(cached) = details.get_mut("cached_tokens")
            && cached.as_u64().is_some_and(|cached| cached > prompt)
        {
            *cached = prompt.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn splice(repeats: &str) -> Splice {
        let Value::Object(identity) = json!({"id": "first", "created": 7, "model": "m"}) else {
            unreachable!()
        };
        Splice { identity, before: 3, opened: true, repeats: repeats.to_owned() }
    }

    fn rewritten(splice: &mut Splice, event: &'static str) -> Option<String> {
        let event = splice.rewritten(&Bytes::from_static(event.as_bytes()));
        event.map(|event| String::from_utf8(event.to_vec()).unwrap())
    }

    #[test]
    fn the_second_half_looks_like_the_first() {
        let mut splice = splice("");
        let opening = "data: {\"id\":\"second\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n";
        assert_eq!(rewritten(&mut splice, opening), None);
        assert_eq!(
            rewritten(
                &mut splice,
                "data: {\"id\":\"second\",\"object\":\"o\",\"created\":9,\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\" é\"}}]}\n\n"
            )
            .unwrap(),
            "data: {\"id\":\"first\",\"object\":\"o\",\"created\":7,\"choices\":[{\"index\":0,\"delta\":{\"content\":\" é\"}}]}\n\n"
        );
        for same in [
            "data: [DONE]\n\n",
            ": alive\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"finish_reason\":\"stop\"}]}\n\n",
        ] {
            assert_eq!(rewritten(&mut splice, same).unwrap(), same);
        }
        let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":13,\"total_tokens\":18,\"completion_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":12}}}\n\n";
        assert_eq!(
            rewritten(&mut splice, usage).unwrap(),
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"total_tokens\":18,\"completion_tokens\":8,\"prompt_tokens_details\":{\"cached_tokens\":10}}}\n\n"
        );
    }

    #[test]
    fn what_is_said_twice_is_said_once() {
        let mut splice = splice(" \n");
        let texts = [("\" \"", "\"\""), ("\"\\nNext\"", "\"Next\""), ("\" \"", "\" \"")];
        for (said, seen) in texts {
            let event: &'static str = format!("data: {{\"choices\":[{{\"text\":{said}}}]}}\n\n").leak();
            assert_eq!(
                rewritten(&mut splice, event).unwrap(),
                format!("data: {{\"choices\":[{{\"text\":{seen}}}]}}\n\n")
            );
        }
        let mut other = self::splice("\n\n");
        assert_eq!(
            rewritten(&mut other, "data: {\"choices\":[{\"text\":\"\\nSo\"}]}\n\n").unwrap(),
            "data: {\"choices\":[{\"text\":\"So\"}]}\n\n"
        );
        assert!(other.repeats.is_empty());
    }
}
