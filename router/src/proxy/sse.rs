//! Watching a streamed answer go by: what is passed on is what came, event by whole event.
//!
//! Half an event is held back until its rest is there, so that a stream that breaks off can be ended properly. The one
//! event that may be left out is the final usage, when the client had not asked for it.

use bytes::{Bytes, BytesMut};
use memchr::{memchr_iter, memchr2, memmem};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::continuation::Told;
use super::record::Record;
use super::splice::Splice;
use super::usage::{Filled, Seeker, Usage};

/// More than this of one event is not held back: the stream is passed on without being watched.
const MAX_EVENT: usize = 1 << 20;

#[derive(Debug, Default)]
pub struct SseWatch {
    held: BytesMut,
    familiar: Familiar,
    drops_usage: bool,
    /// Not watched any more, but for its usage.
    blind: Option<Box<Seeker>>,
    /// Where another may have to go on: what was said, and the event in which the engine gave up.
    record: Option<Box<Record>>,
    gave_up: Option<Bytes>,
    /// Where another does.
    splice: Option<Box<Splice>>,
    pub seen: Seen,
}

/// What becomes of an event.
enum Passed {
    AsItIs,
    As(Bytes),
    Not,
}

/// An event that was read, but for its text: one that differs in nothing else says the same and need not be read.
#[derive(Debug, Default)]
struct Familiar {
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Familiar {
    /// Remembers an event whose only token is in the text behind one of these names.
    fn learn(&mut self, event: &[u8]) {
        let names = ["\"content\":\"", "\"text\":\""];
        let ends = |name: &&'static str| {
            let length = name.len();
            memmem::find_iter(event, name.as_bytes()).map(move |at| at + length)
        };
        // Where there are several, it cannot be told which one was read.
        let mut found = names.iter().flat_map(ends);
        let (Some(from), None) = (found.next(), found.next()) else { return };
        let Some(length) = text_length(&event[from..]).filter(|length| *length > 0) else { return };
        self.before.clear();
        self.before.extend_from_slice(&event[..from]);
        self.after.clear();
        self.after.extend_from_slice(&event[from + length..]);
    }

    /// The text of an event like that.
    fn text<'e>(&self, event: &'e [u8]) -> Option<&'e [u8]> {
        if self.before.is_empty() {
            return None;
        }
        let text = event.strip_prefix(&self.before[..])?.strip_suffix(&self.after[..])?;
        let is_one_text = memchr2(b'"', b'\\', text).is_none() || {
            // The quote that ends it is the first of what comes after.
            text_length(&event[self.before.len()..]) == Some(text.len())
        };
        is_one_text.then_some(text)
    }
}

/// How long a JSON text is from here up to the quote that ends it.
fn text_length(bytes: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + memchr2(b'"', b'\\', &bytes[from..])?;
        if bytes[at] == b'"' {
            return Some(at);
        }
        // What is escaped ends nothing.
        from = at + 2;
        if from > bytes.len() {
            return None;
        }
    }
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
    /// Whether it says nothing besides one text, behind one of the two names it may have.
    fn is_text_alone(&self) -> bool {
        let content = self.delta.as_ref().is_some_and(|delta| {
            delta.content.0 && !delta.reasoning.0 && !delta.reasoning_content.0 && !delta.tool_calls.0
        });
        let text = self.delta.is_none() && self.text.0;
        (content && !self.text.0 || text) && !self.finish_reason.0 && self.token_ids.is_none()
    }

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
        if let Some(seeker) = &mut self.blind {
            seeker.feed(&frame);
            // What was seen before it went blind stays, until there is more.
            self.seen.usage = seeker.found.clone().or(self.seen.usage.take());
            return frame;
        }
        let bytes = if self.held.is_empty() {
            frame
        } else {
            self.held.extend_from_slice(&frame);
            self.held.split().freeze()
        };
        let (mut from, mut kept_from, mut kept) = (0, 0, None::<BytesMut>);
        while self.gave_up.is_none()
            && let Some(end) = event_end(&bytes[from..])
        {
            let event = from..from + end;
            let passed = self.look(&bytes, event.clone());
            if !matches!(passed, Passed::AsItIs) {
                let kept = kept.get_or_insert_default();
                kept.extend_from_slice(&bytes[kept_from..event.start]);
                kept_from = event.end;
                if let Passed::As(changed) = passed {
                    kept.extend_from_slice(&changed);
                }
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
            let (mut all, held) = (BytesMut::from(passed), self.held.split());
            let mut seeker = Box::new(Seeker::default());
            seeker.feed(&held);
            self.seen.usage = seeker.found.clone().or(self.seen.usage.take());
            self.blind = Some(seeker);
            self.seen.malformed += 1;
            all.extend_from_slice(&held);
            passed = all.freeze();
        }
        passed
    }

    /// From now on what is said is kept, up to so many bytes.
    pub(super) fn keep(&mut self, most: usize) {
        self.record = Some(Box::new(Record::new(most)));
    }

    /// What was said so far, or why nobody can go on with it.
    pub(super) fn told(&self) -> Result<Told, &'static str> {
        match &self.record {
            Some(_) if self.blind.is_some() => Err("it had an event that was too long"),
            Some(record) => record.told(),
            None => Err("it was not kept"),
        }
    }

    /// What all of its events repeat.
    pub(super) fn identity(&self) -> Option<&Map<String, Value>> {
        self.record.as_ref().map(|record| &record.identity)
    }

    /// The event in which the engine said that it cannot go on. What comes behind it is not looked at.
    pub(super) fn gave_up(&self) -> Option<&Bytes> {
        self.gave_up.as_ref()
    }

    /// Somebody else goes on from here. Of an event that was cut in two nothing has been passed on.
    pub(super) fn goes_on(&mut self, before: u64, repeats: String, drops_usage: bool) {
        self.held.clear();
        self.familiar = Familiar::default();
        self.gave_up = None;
        self.drops_usage = drops_usage;
        (self.seen.usage, self.seen.error, self.seen.done) = (None, false, false);
        let (identity, opened) = match &self.record {
            Some(record) => (record.identity.clone(), record.opened),
            None => Default::default(),
        };
        self.splice = Some(Box::new(Splice { identity, before, opened, repeats }));
    }

    /// Whether every choice has said why it ended.
    pub(super) fn has_ended(&self) -> bool {
        self.blind.is_none() && self.seen.begun != 0 && self.seen.begun == self.seen.ended
    }

    /// Whether the answer is all there, and only what ends every stream is missing.
    pub(super) fn lacks_only_its_end(&self) -> bool {
        self.has_ended() && !self.seen.done && !self.seen.error && self.drops_usage
    }

    /// What is held back when the stream is over: the half of an event, if anything.
    pub fn rest(&mut self) -> Bytes {
        self.held.split().freeze()
    }

    /// Whether the answer was whole when the stream ended. One that was not watched to its end counts as whole.
    pub fn complete(&self) -> bool {
        let Seen { done, begun, ended, error, .. } = self.seen;
        self.blind.is_some() || done || error || (begun != 0 && begun == ended)
    }

    /// Whether the last bytes that were passed on may be in the middle of a line.
    pub fn in_mid_line(&self) -> bool {
        self.blind.is_some()
    }

    /// Looks at one event, changed first where it goes on with another's answer.
    fn look(&mut self, bytes: &Bytes, event: std::ops::Range<usize>) -> Passed {
        let Some(splice) = &mut self.splice else {
            return if self.see(&bytes[event]) { Passed::AsItIs } else { Passed::Not };
        };
        match splice.rewritten(&bytes.slice(event)) {
            Some(changed) if self.see(&changed) => Passed::As(changed),
            _ => Passed::Not,
        }
    }

    /// Looks at one event; says whether it is to be passed on.
    fn see(&mut self, event: &[u8]) -> bool {
        if let Some(text) = self.familiar.text(event) {
            let tokens = u64::from(!text.is_empty());
            self.seen.tokens += tokens;
            if let Some(record) = &mut self.record {
                record.text(text, tokens);
            }
            return true;
        }
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
            if let Some(record) = &mut self.record {
                record.event(data, 0);
            }
            return true;
        };
        let tokens = chunk.choices.iter().map(Choice::tokens).sum::<u64>();
        if let Some(record) = &mut self.record
            && record.event(data, tokens)
        {
            self.gave_up = Some(Bytes::copy_from_slice(event));
            return false;
        }
        self.seen.error |= chunk.error.0;
        self.seen.tokens += tokens;
        for choice in &chunk.choices {
            let bit = 1 << choice.index.min(63);
            self.seen.begun |= bit;
            self.seen.ended |= if choice.finish_reason.0 { bit } else { 0 };
        }
        if let [choice] = &chunk.choices[..]
            && choice.is_text_alone()
            && !chunk.error.0
            && chunk.usage.is_none()
        {
            self.familiar.learn(event);
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

    /// Chunks that differ in their text alone are not read, and counted all the same.
    #[test]
    fn familiar_events_mean_what_they_meant() {
        let event = |content: &str, rest: &str| {
            format!(
                "data: {{\"id\":\"x\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":{content}}},{rest}}}]}}\n\n"
            )
        };
        let plain = "\"finish_reason\":null";
        let mut watch = SseWatch::new(true);
        let mut tokens = |event: String| {
            watch.feed(Bytes::from(event));
            (std::mem::take(&mut watch.seen.tokens), watch.seen.ended, watch.seen.malformed)
        };
        assert_eq!(tokens(event("\"\"", plain)), (0, 0, 0));
        assert_eq!(tokens(event("\" one\"", plain)), (1, 0, 0));
        for text in ["\" two\"", "\"\\\"\"", "\"\\\\\"", "\"\\u00e9\u{e9}\"", "\" \\\"}]}\""] {
            assert_eq!(tokens(event(text, plain)), (1, 0, 0), "{text}");
        }
        assert_eq!(tokens(event("\"\"", plain)), (0, 0, 0));
        // The same beginning and end, but something else between.
        assert_eq!(tokens(event("\"a\",\"tool_calls\":[],\"role\":\"b\"", plain)), (1, 0, 0));
        assert_eq!(tokens(event("\"a\\\"", plain)), (0, 0, 1));
        assert_eq!(tokens(event("\" end\"", "\"finish_reason\":\"stop\"")), (1, 1, 1));
        // Reasoning counts, and is not mistaken for content.
        let mut watch = SseWatch::new(true);
        for (delta, tokens) in [
            ("{\"content\":\"\",\"reasoning\":\"r\"}", 1),
            ("{\"content\":\"\",\"reasoning\":\"r\"}", 1),
            ("{\"content\":\"c\",\"reasoning\":null}", 1),
            ("{\"content\":\"\",\"reasoning\":null}", 0),
            ("{\"content\":null,\"reasoning\":\"x\"}", 1),
        ] {
            watch.feed(Bytes::from(format!("data: {{\"choices\":[{{\"delta\":{delta}}}]}}\n\n")));
            assert_eq!(std::mem::take(&mut watch.seen.tokens), tokens, "{delta}");
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
