//! Watching a streamed answer go by: what is passed on is what came, event by whole event.
//!
//! Half an event is held back until its rest is there, so that a stream that breaks off can be ended properly. The one
//! event that may be left out is the final usage, when the client had not asked for it.

use bytes::{Bytes, BytesMut};
use memchr::memchr_iter;
use serde::Deserialize;

use super::usage::{Filled, Usage};

/// More than this of one event is not held back: the stream is passed on without being watched.
const MAX_EVENT: usize = 1 << 20;

#[derive(Debug, Default)]
pub struct SseWatch {
    held: BytesMut,
    drops_usage: bool,
    /// Not watched any more.
    blind: bool,
    pub seen: Seen,
}

/// What went by so far.
#[derive(Debug, Default)]
pub struct Seen {
    /// Tokens since somebody last looked.
    pub tokens: u64,
    pub usage: Option<Usage>,
    /// `[DONE]`.
    pub done: bool,
    /// Choices that have begun and those that have ended, a bit each.
    begun: u64,
    ended: u64,
    /// The engine said that something went wrong.
    pub error: bool,
    /// Events that were not understood.
    pub malformed: u64,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Filled,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: u32,
    #[serde(default)]
    delta: Option<Delta>,
    #[serde(default)]
    text: Filled,
    #[serde(default)]
    finish_reason: Filled,
    #[serde(default)]
    token_ids: Option<Vec<serde::de::IgnoredAny>>,
}

#[derive(Default, Deserialize)]
struct Delta {
    #[serde(default)]
    content: Filled,
    #[serde(default)]
    reasoning: Filled,
    #[serde(default)]
    reasoning_content: Filled,
    #[serde(default)]
    tool_calls: Filled,
}

impl Choice {
    fn tokens(&self) -> u64 {
        let delta = self.delta.as_ref().is_some_and(|delta| {
            delta.content.0 || delta.reasoning.0 || delta.reasoning_content.0 || delta.tool_calls.0
        });
        match &self.token_ids {
            Some(ids) if !ids.is_empty() => ids.len() as u64,
            _ => u64::from(delta || self.text.0),
        }
    }
}

impl SseWatch {
    pub fn new(drops_usage: bool) -> Self {
        Self { drops_usage, ..Self::default() }
    }

    /// What of the stream can be passed on now.
    pub fn feed(&mut self, frame: Bytes) -> Bytes {
        if self.blind {
            return frame;
        }
        let bytes = if self.held.is_empty() {
            frame
        } else {
            self.held.extend_from_slice(&frame);
            self.held.split().freeze()
        };
        let (mut from, mut kept_from, mut kept) = (0, 0, None::<BytesMut>);
        while let Some(end) = event_end(&bytes[from..]) {
            let event = from..from + end;
            if !self.see(&bytes[event.clone()]) {
                kept.get_or_insert_default().extend_from_slice(&bytes[kept_from..event.start]);
                kept_from = event.end;
            }
            from = event.end;
        }
        if from < bytes.len() {
            self.held.extend_from_slice(&bytes[from..]);
        }
        let mut passed = match kept {
            None => bytes.slice(..from),
            Some(mut kept) => {
                kept.extend_from_slice(&bytes[kept_from..from]);
                kept.freeze()
            }
        };
        if self.held.len() > MAX_EVENT {
            self.blind = true;
            self.seen.malformed += 1;
            let mut all = BytesMut::from(passed);
            all.extend_from_slice(&self.held.split());
            passed = all.freeze();
        }
        passed
    }

    /// What is held back when the stream is over: the half of an event, if anything.
    pub fn rest(&mut self) -> Bytes {
        self.held.split().freeze()
    }

    /// Whether the answer was whole when the stream ended. One that was not watched to its end counts as whole.
    pub fn complete(&self) -> bool {
        let Seen { done, begun, ended, error, .. } = self.seen;
        self.blind || done || error || (begun != 0 && begun == ended)
    }

    /// Whether the last bytes that were passed on may be in the middle of a line.
    pub fn in_mid_line(&self) -> bool {
        self.blind
    }

    /// Looks at one event; says whether it is to be passed on.
    fn see(&mut self, event: &[u8]) -> bool {
        let mut lines =
            event.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let Some(data) = lines.find_map(|line| line.strip_prefix(b"data:")) else {
            // Comments keep connections alive; an empty one is only its end.
            let comment = |line: &[u8]| line.is_empty() || line.starts_with(b":") || line.starts_with(b"\r");
            self.seen.malformed += u64::from(!event.split(|byte| *byte == b'\n').all(comment));
            return true;
        };
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            self.seen.done = true;
            return true;
        }
        let Ok(chunk) = serde_json::from_slice::<Chunk>(data) else {
            self.seen.malformed += 1;
            return true;
        };
        self.seen.error |= chunk.error.0;
        self.seen.tokens += chunk.choices.iter().map(Choice::tokens).sum::<u64>();
        for choice in &chunk.choices {
            let bit = 1 << choice.index.min(63);
            self.seen.begun |= bit;
            self.seen.ended |= if choice.finish_reason.0 { bit } else { 0 };
        }
        let usage_only = chunk.usage.is_some() && chunk.choices.is_empty();
        // Usage may come with every chunk; what is cached only with the last.
        if let Some(usage) = chunk.usage {
            self.seen.usage = Some(usage.or(self.seen.usage.take()));
        }
        !(usage_only && self.drops_usage)
    }
}

/// Behind the empty line that ends an event.
fn event_end(bytes: &[u8]) -> Option<usize> {
    memchr_iter(b'\n', bytes).find_map(|at| match &bytes[at + 1..] {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = concat!(
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
        ": keep-alive\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"},\"token_ids\":[1,2,3]}]}\r\n\r\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\" \\u00e9\"},\"finish_reason\":null}]}\n\n",
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":5,",
        "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n",
        "data: [DONE]\n\n",
    );

    /// However a stream is cut into frames, the same comes out.
    #[test]
    fn events_pass_whole_and_only_the_usage_is_left_out() {
        let usage_at = STREAM.find("data: {\"choices\":[],").unwrap();
        let without = format!("{}{}", &STREAM[..usage_at], "data: [DONE]\n\n");
        for size in [1, 2, 3, 7, 50, 150, 1000] {
            for (drops, expected) in [(false, STREAM), (true, without.as_str())] {
                let mut watch = SseWatch::new(drops);
                let mut passed = Vec::new();
                for frame in STREAM.as_bytes().chunks(size) {
                    let part = watch.feed(Bytes::copy_from_slice(frame));
                    assert!(part.is_empty() || part.ends_with(b"\n"), "only whole events");
                    passed.extend_from_slice(&part);
                }
                assert_eq!(String::from_utf8(passed).unwrap(), expected, "frames of {size}");
                assert_eq!((watch.seen.tokens, watch.seen.done), (4, true));
                let usage = watch.seen.usage.as_ref().unwrap();
                assert_eq!(
                    (usage.prompt_tokens, usage.completion_tokens, usage.cached()),
                    (Some(9), Some(5), Some(4))
                );
                assert!(watch.complete() && watch.seen.malformed == 0 && watch.rest().is_empty());
            }
        }
    }

    #[test]
    fn what_came_in_one_piece_goes_out_uncopied() {
        let frame =
            Bytes::from_static(b"data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[]}\n\n");
        let mut watch = SseWatch::new(true);
        let passed = watch.feed(frame.clone());
        assert_eq!((passed.as_ptr(), passed.len()), (frame.as_ptr(), frame.len()));
        assert_eq!(watch.seen.tokens, 1);
    }

    #[test]
    fn nonsense_is_passed_on_and_counted() {
        let mut watch = SseWatch::new(true);
        for (frame, malformed) in
            [("data: {broken\n\n", 1), ("event: x\n\n", 2), ("data: 7\n\n", 3), ("\n\n", 3), (":\n\n", 3)]
        {
            assert_eq!(watch.feed(Bytes::from(frame)), frame);
            assert_eq!(watch.seen.malformed, malformed, "{frame:?}");
        }
        assert!(!watch.complete());
        watch.feed(Bytes::from_static(b"data: {\"cho"));
        assert_eq!(watch.rest(), "data: {\"cho");
        let long = Bytes::from(vec![b'x'; MAX_EVENT + 1]);
        assert_eq!(watch.feed(long.clone()), long);
        assert_eq!(watch.feed(Bytes::from_static(b"y")), "y");
        let mut several = SseWatch::new(true);
        for (event, whole) in [
            ("data: {\"choices\":[{\"index\":0,\"text\":\"a\"},{\"index\":1,\"text\":\"b\"}]}\n\n", false),
            ("data: {\"choices\":[{\"index\":1,\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\n", false),
            ("data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\n", true),
        ] {
            several.feed(Bytes::from(event));
            assert_eq!(several.complete(), whole, "{event}");
        }
        let mut watch = SseWatch::new(true);
        watch.feed(Bytes::from_static(b"event: error\ndata: {\"error\": {\"message\": \"x\"}}\n\n"));
        assert!(watch.seen.error && watch.complete());
    }
}
