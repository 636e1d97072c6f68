//! What a stream has said so far, kept for the case that somebody else has to go on with it.

use serde_json::{Map, Value};

use super::continuation::Told;

/// Kept of one stream. Only text can be gone on with: whatever else is said ends it.
#[derive(Debug)]
pub(super) struct Record {
    /// The text, as it stands between quotes.
    raw: Vec<u8>,
    most: usize,
    tokens: u64,
    /// What every event repeats: id, time, model and their like, as the first one had them.
    pub(super) identity: Map<String, Value>,
    /// Whether it was said who speaks.
    pub(super) opened: bool,
    lost: Option<&'static str>,
}

impl Record {
    pub(super) fn new(most: usize) -> Self {
        Self { raw: Vec::new(), most, tokens: 0, identity: Map::new(), opened: false, lost: None }
    }

    /// The text of an event that differs from the last one in nothing else.
    pub(super) fn text(&mut self, raw: &[u8], tokens: u64) {
        self.tokens += tokens;
        if self.lost.is_some() {
            return;
        }
        if self.raw.len() + raw.len() > self.most {
            self.lost = Some("its text is longer than proxy.continued_kib");
            self.raw = Vec::new();
            return;
        }
        self.raw.extend_from_slice(raw);
    }

    /// An event of any kind. Says so when the engine tells in it that it failed.
    pub(super) fn event(&mut self, data: &[u8], tokens: u64) -> bool {
        let Ok(Value::Object(mut event)) = serde_json::from_slice(data) else {
            self.lost = self.lost.or(Some("it had events that are no JSON"));
            return false;
        };
        if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
            // What the client did wrong it would do wrong elsewhere, too.
            let code =
                error.get("code").and_then(|code| code.as_u64().or_else(|| code.as_str()?.parse().ok()));
            return code.is_none_or(|code| code >= 500);
        }
        let choices = event.remove("choices");
        for choice in choices.iter().filter_map(Value::as_array).flatten() {
            self.choice(choice, tokens);
        }
        if self.identity.is_empty() {
            event.remove("usage");
            self.identity = event;
        }
        false
    }

    fn choice(&mut self, choice: &Value, tokens: u64) {
        if choice["index"].as_u64().unwrap_or(0) > 0 {
            self.lost = Some("it has several choices");
        }
        if !choice["logprobs"].is_null() {
            self.lost = Some("it has log-probabilities");
        }
        let delta = &choice["delta"];
        self.opened |= delta["role"].is_string();
        for (field, why) in [
            ("tool_calls", "it calls tools"),
            ("function_call", "it calls a function"),
            ("reasoning", "it has reasoning"),
            ("reasoning_content", "it has reasoning"),
            ("refusal", "it refuses"),
        ] {
            let value = &delta[field];
            let empty =
                value.is_null() || value.as_str() == Some("") || value.as_array().is_some_and(Vec::is_empty);
            if !empty {
                self.lost = Some(why);
            }
        }
        let text = delta["content"].as_str().or(choice["text"].as_str()).unwrap_or_default();
        let quoted = Value::from(text).to_string();
        self.text(quoted.as_bytes().get(1..quoted.len() - 1).unwrap_or_default(), tokens);
    }

    /// What was said, or why that cannot be gone on with.
    pub(super) fn told(&self) -> Result<Told, &'static str> {
        if let Some(why) = self.lost {
            return Err(why);
        }
        let quoted = [b"\"", &self.raw[..], b"\""].concat();
        let text = serde_json::from_slice(&quoted).map_err(|_| "its text is not well-formed")?;
        Ok(Told { text, tokens: self.tokens })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(events: &[&str]) -> Record {
        let mut record = Record::new(64);
        for event in events {
            assert!(!record.event(event.as_bytes(), 1), "{event}");
        }
        record
    }

    #[test]
    fn text_is_kept_however_it_is_written() {
        let mut record = record(&[
            r#"{"id":"a","created":7,"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":null}"#,
            r#"{"id":"b","choices":[{"index":0,"delta":{"content":"caf\u00e9 \"x\""},"logprobs":null}]}"#,
            r#"{"choices":[{"index":0,"text":"\n"}]}"#,
        ]);
        record.text(b" \\ud83d\\ude00", 1);
        let told = record.told().unwrap();
        assert_eq!((told.text.as_str(), told.tokens), ("caf\u{e9} \"x\"\n \u{1f600}", 4));
        assert_eq!(Value::from(record.identity.clone()).to_string(), r#"{"id":"a","created":7}"#);
        assert!(record.opened);
    }

    #[test]
    fn what_cannot_be_gone_on_with_is_named() {
        for (event, says) in [
            (r#"{"choices":[{"index":1,"text":"a"}]}"#, "several choices"),
            (r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#, "tools"),
            (r#"{"choices":[{"delta":{"reasoning":"hm"}}]}"#, "reasoning"),
            (r#"{"choices":[{"text":"a","logprobs":{"tokens":["a"]}}]}"#, "log-probabilities"),
            ("no json", "no JSON"),
        ] {
            assert!(record(&[event]).told().unwrap_err().contains(says), "{event}");
        }
        assert!(record(&[r#"{"choices":[{"delta":{"tool_calls":[],"reasoning":null}}]}"#]).told().is_ok());
        let mut long = record(&[]);
        long.text(&[b'x'; 65], 1);
        assert!(long.told().unwrap_err().contains("continued_kib"));
        let mut cut = record(&[]);
        cut.text(b"\\ud83d", 1);
        assert!(cut.told().is_err(), "half a character");
    }

    #[test]
    fn an_engine_says_when_it_failed() {
        for (event, failed) in [
            (r#"{"error":{"message":"x","code":500}}"#, true),
            (r#"{"error":{"message":"x"}}"#, true),
            (r#"{"error":{"message":"x","code":"400"}}"#, false),
            (r#"{"error":null,"choices":[]}"#, false),
        ] {
            assert_eq!(Record::new(64).event(event.as_bytes(), 0), failed, "{event}");
        }
    }
}
