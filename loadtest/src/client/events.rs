//! A streamed answer's events.

use serde::Deserialize;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Chunk {
        text: String,
        /// What a model thinks is generated as well, and is no part of the answer.
        reasoning: bool,
        /// The server says that it is over.
        finished: bool,
        usage: Option<Usage>,
    },
    /// The server says what went wrong, and by which code where it has one.
    Error {
        message: String,
        code: Option<String>,
    },
    Done,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Usage {
    #[serde(default)]
    pub(crate) prompt_tokens: Option<u64>,
    #[serde(default)]
    pub(crate) completion_tokens: Option<u64>,
    #[serde(default)]
    prompt_tokens_details: Option<Details>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
struct Details {
    #[serde(default)]
    cached_tokens: Option<u64>,
}

impl Usage {
    pub(crate) fn cached_tokens(self) -> Option<u64> {
        self.prompt_tokens_details?.cached_tokens
    }
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Option<Delta>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Delta {
    #[serde(default)]
    content: Option<String>,
    /// Some servers use one name, some the other, some both.
    #[serde(default)]
    reasoning_content: Option<String>,
    #[serde(default)]
    reasoning: Option<String>,
}

/// Cuts bytes into events, whatever pieces they come in.
#[derive(Debug, Default)]
pub(crate) struct Events {
    rest: Vec<u8>,
}

/// No event is longer.
const MOST: usize = 16 << 20;

impl Events {
    /// What is left when nothing more comes: a last line may lack its end.
    pub(crate) fn end(&mut self) -> Result<Vec<Event>, String> {
        self.read(b"\n")
    }

    /// Whole events so far. Errors say what was not understood.
    pub(crate) fn read(&mut self, data: &[u8]) -> Result<Vec<Event>, String> {
        self.rest.extend_from_slice(data);
        let mut events = Vec::new();
        let mut from = 0;
        while let Some(end) = self.rest[from..].iter().position(|byte| *byte == b'\n').map(|at| from + at) {
            let line = self.rest[from..end].trim_ascii();
            from = end + 1;
            // Lines of other fields, comments and the empty ones between events.
            let Some(data) = line.strip_prefix(b"data:") else { continue };
            events.push(event(data.trim_ascii())?);
        }
        self.rest.drain(..from);
        if self.rest.len() > MOST {
            return Err(format!("an event of more than {MOST} bytes"));
        }
        Ok(events)
    }
}

/// What pieces of a stream say, one line an event, up to what is not understood.
#[cfg(fuzzing)]
pub fn read_pieces<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<String>, Option<String>) {
    let (mut events, mut read) = (Events::default(), Vec::new());
    for piece in pieces.map(Some).chain([None]) {
        let some = match piece {
            Some(piece) => events.read(piece),
            None => events.end(),
        };
        match some {
            Ok(some) => read.extend(some.iter().map(|event| format!("{event:?}"))),
            Err(error) => return (read, Some(error)),
        }
    }
    (read, None)
}

fn event(data: &[u8]) -> Result<Event, String> {
    if data == b"[DONE]" {
        return Ok(Event::Done);
    }
    let chunk: Chunk =
        serde_json::from_slice(data).map_err(|error| format!("an event is not understood: {error}"))?;
    if let Some(error) = chunk.error {
        let message = error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned);
        return Ok(Event::Error { message, code: error["code"].as_str().map(str::to_owned) });
    }
    let finished = chunk.choices.iter().any(|choice| choice.finish_reason.is_some());
    let (mut text, mut reasoning) = (String::new(), false);
    for delta in chunk.choices.into_iter().filter_map(|choice| choice.delta) {
        text.extend(delta.content);
        let thought = delta.reasoning_content.or(delta.reasoning);
        reasoning |= thought.is_some_and(|thought| !thought.is_empty());
    }
    Ok(Event::Chunk { text, reasoning, finished, usage: chunk.usage })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_whole_whatever_pieces_they_come_in() {
        let stream = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\r\n\r\n: ping\n\n\
                      data: {\"choices\":[{\"delta\":{\"content\":\"Hé\"}}]}\n\nevent: x\ndata:{\"choices\":[],\"usage\":\
                      {\"prompt_tokens\":9,\"completion_tokens\":4,\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\n\
                      data: [DONE]\n\n";
        let whole = Events::default().read(stream.as_bytes()).unwrap();
        for size in [1, 2, 3, 7, 50] {
            let mut events = Events::default();
            let read: Vec<Event> =
                stream.as_bytes().chunks(size).flat_map(|part| events.read(part).unwrap()).collect();
            assert_eq!(read, whole, "in pieces of {size}");
        }
        assert_eq!((whole.len(), &whole[3]), (4, &Event::Done));
        let said = Event::Chunk { text: "Hé".to_owned(), reasoning: false, finished: false, usage: None };
        assert_eq!(whole[1], said);
        let Event::Chunk { usage: Some(usage), .. } = &whole[2] else { panic!("{whole:?}") };
        assert_eq!((usage.completion_tokens, usage.cached_tokens()), (Some(4), Some(8)));
    }

    #[test]
    fn thoughts_count_and_are_no_answer() {
        let read = |text: &str| Events::default().read(text.as_bytes()).unwrap().remove(0);
        let thought = Event::Chunk { text: String::new(), reasoning: true, finished: false, usage: None };
        for names in [
            "\"reasoning\":\"hm\"",
            "\"reasoning_content\":\"hm\"",
            "\"reasoning\":\"hm\",\"reasoning_content\":\"hm\"",
        ] {
            assert_eq!(read(&format!("data: {{\"choices\":[{{\"delta\":{{{names}}}}}]}}\n")), thought);
        }
        let over = Event::Chunk { text: String::new(), reasoning: false, finished: true, usage: None };
        assert_eq!(read("data: {\"choices\":[{\"delta\":null,\"finish_reason\":\"stop\"}]}\n"), over);
    }

    #[test]
    fn errors_and_nonsense_are_told_apart() {
        let read = |text: &str| Events::default().read(text.as_bytes());
        assert_eq!(
            read("data: {\"error\":{\"message\":\"gone\",\"code\":\"left\"}}\n").unwrap(),
            [Event::Error { message: "gone".to_owned(), code: Some("left".to_owned()) }]
        );
        assert!(read("data: {\"choices\": 7}\n").unwrap_err().contains("not understood"));
        assert!(read("data: nonsense\n").is_err());
    }
}
