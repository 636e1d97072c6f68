//! A client's request: its bytes as they came, and a typed view of the fields that matter here.
//!
//! The bytes go to the engine unchanged, with few exceptions:
//! `stream_options.include_usage` is asked for when a stream's client did not, because only the final usage tells what
//! was cached; `kv_cache_report_mode` is taken out of `vllm_xargs`, because it would make an engine announce blocks
//! twice; for TensorRT-LLM, which refuses fields it does not know, the routers' own blocks `ext` and `nvext` are left
//! out; and a client's key may impose a `cache_salt` and a bound on `priority`.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use kvlane_engine_adapters::engine_facts::Engine;
use kvlane_engine_adapters::openai::GenerateRequest;
use memchr::memmem;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::error::RouterError;
use crate::scheduling::Priority;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    Chat,
    Completions,
    // Passed through, placed by load.
    Embeddings,
    Responses,
    Tokenize,
    Detokenize,
}

impl Endpoint {
    pub const ALL: [Self; 6] =
        [Self::Chat, Self::Completions, Self::Embeddings, Self::Responses, Self::Tokenize, Self::Detokenize];

    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Embeddings => "/v1/embeddings",
            Self::Responses => "/v1/responses",
            Self::Tokenize => "/tokenize",
            Self::Detokenize => "/detokenize",
        }
    }

    /// Whether tokens are made there.
    pub fn generates(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }

    /// Dynamo's word in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat_completions",
            Self::Completions => "completions",
            Self::Embeddings => "embeddings",
            Self::Responses => "responses",
            Self::Tokenize => "tokenize",
            Self::Detokenize => "detokenize",
        }
    }
}

/// A request that was understood.
#[derive(Debug)]
pub struct ClientRequest {
    pub endpoint: Endpoint,
    pub bytes: Bytes,
    pub view: GenerateRequest,
    edits: Edits,
}

/// The fields of a request that is passed through.
#[derive(Debug, Deserialize)]
pub struct Named {
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub stream: Option<bool>,
}

/// What a client's key makes of its requests.
#[derive(Clone, Debug, Default)]
pub struct Imposed {
    /// Keeps its blocks apart from everybody else's.
    pub salt: Option<String>,
    /// The most urgent it may be.
    pub ceiling: Option<Priority>,
}

impl Imposed {
    /// The salt of a request whose client says that one. Keys' salts have no slash, so the first one ends what is the
    /// key's, and nothing that a client says makes another key's salt.
    fn salt(&self, own: Option<&str>) -> Option<String> {
        let own = own.filter(|own| !own.is_empty());
        match (&self.salt, own) {
            (Some(salt), None) => Some(salt.clone()),
            (salt, Some(own)) => Some(format!("{}/{own}", salt.as_deref().unwrap_or_default())),
            (None, None) => None,
        }
    }

    fn priority(&self, own: Option<i32>) -> Option<i32> {
        let ceiling = self.ceiling?;
        Priority::of_number(own?).before(ceiling).then(|| ceiling.number())
    }
}

/// A field's value: where it is, or nowhere yet, and what it becomes.
type Splice = (Option<Range<usize>>, String);

/// Top-level fields that may have to change, as ranges of the body.
#[derive(Clone, Debug, Default)]
struct Edits {
    /// Behind the opening brace, and whether other fields follow.
    start: usize,
    empty: bool,
    stream_options: Option<Range<usize>>,
    /// Those that any engine gets, by their names.
    always: Vec<(&'static str, Splice)>,
    with_usage: String,
    /// Whether it has blocks for routers.
    own_blocks: bool,
}

#[derive(Default, Deserialize)]
struct Raw<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    stream_options: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    vllm_xargs: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    ext: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    nvext: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    cache_salt: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    priority: Option<&'a RawValue>,
    // What leads around a key at some engine.
    #[serde(borrow, default)]
    extra_key: Option<&'a RawValue>,
    #[serde(borrow, default)]
    lora_path: Option<&'a RawValue>,
    #[serde(borrow, default)]
    rid: Option<&'a RawValue>,
    #[serde(borrow, default)]
    session_params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    kv_transfer_params: Option<&'a RawValue>,
}

impl Raw<'_> {
    /// Keys divide caches and bound models by fields they know. SGLang joins `extra_key` to the salt, takes an adapter
    /// from `lora_path`, and names requests and sessions by `rid` and `session_params`; `kv_transfer_params` fetches
    /// blocks by name.
    fn refuse_ways_around(&self) -> Result<(), RouterError> {
        let ways = [
            ("extra_key", self.extra_key, "`cache_salt`"),
            ("lora_path", self.lora_path, "the adapter's name as `model`"),
            ("rid", self.rid, "the header `x-request-id`"),
            ("session_params", self.session_params, "the header `x-session-id`"),
            ("kv_transfer_params", self.kv_transfer_params, "a request without it"),
        ];
        match ways.into_iter().find(|(_, said, _)| said.is_some()) {
            None => Ok(()),
            Some((field, _, expected)) => {
                let message = format!("`{field}` cannot be used with an API key, expected {expected}");
                Err(RouterError::bad_request(field.to_owned(), message))
            }
        }
    }
}

/// Whether any of those names is in a body, be it in a text; or something is written in a way that could hide one.
fn may_have_edits(body: &[u8], imposed: bool) -> bool {
    let marks = ["\"stream_options\"", "\"vllm_xargs\"", "\"ext\"", "\"nvext\"", "\\u00"];
    let theirs = [
        "\"cache_salt\"",
        "\"priority\"",
        "\"extra_key\"",
        "\"lora_path\"",
        "\"rid\"",
        "\"session_params\"",
        "\"kv_transfer_params\"",
    ];
    let marks = marks.into_iter().chain(theirs.into_iter().filter(|_| imposed));
    marks.into_iter().any(|mark| memmem::find(body, mark.as_bytes()).is_some())
}

/// A field that is there, be it `null`.
fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

impl ClientRequest {
    pub fn read(endpoint: Endpoint, bytes: Bytes) -> Result<Self, RouterError> {
        Self::read_imposed(endpoint, bytes, None)
    }

    /// The same of a client whose key has a say in it.
    pub fn read_imposed(
        endpoint: Endpoint,
        bytes: Bytes,
        imposed: Option<&Imposed>,
    ) -> Result<Self, RouterError> {
        refuse_list(&bytes)?;
        // Fields that are skipped are not looked into, and what is sent has to be JSON all through.
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            let at = error.valid_up_to() + 1;
            RouterError::bad_request(None, format!("the body is not JSON: byte {at} is not UTF-8"))
        })?;
        let mut view: GenerateRequest =
            serde_json::from_str(text).map_err(|_| json_error::<GenerateRequest>(&bytes))?;
        // Read a second time only if there may be something to find.
        let raw: Raw<'_> = if may_have_edits(&bytes, imposed.is_some()) {
            serde_json::from_str(text).map_err(|_| json_error::<Raw<'_>>(&bytes))?
        } else {
            Raw::default()
        };
        if imposed.is_some() {
            raw.refuse_ways_around()?;
        }
        let missing = |field: &str, what: &str| {
            let message = format!("`{field}` is missing, expected {what}");
            Err(RouterError::bad_request(field.to_owned(), message))
        };
        match endpoint {
            Endpoint::Chat if view.messages.as_ref().is_none_or(Vec::is_empty) => {
                return missing("messages", "a list of one message or more");
            }
            Endpoint::Completions if view.prompt.is_none() => {
                return missing("prompt", "a text, token ids, or a list of either");
            }
            _ => {}
        }
        let edits = Edits::find(&bytes, &raw, &mut view, imposed);
        Ok(Self { endpoint, bytes, view, edits })
    }

    pub fn streams(&self) -> bool {
        self.view.streams()
    }

    /// What the client calls its conversation in the body.
    pub fn session(&self) -> Option<String> {
        let user = || Some(self.view.user.as_ref()?.as_str()?.to_owned());
        self.view.session_id.clone().or_else(user)
    }

    /// Whether the client wants the final usage of a stream.
    pub fn wants_usage(&self) -> bool {
        self.view.stream_options.is_some_and(|options| options.include_usage == Some(true))
    }

    /// Whether usage is asked for on the client's behalf, to be taken out of the answer again. TensorRT-LLM sends it
    /// unasked, and then the client would have had it without us.
    pub fn adds_usage(&self, engine: Engine) -> bool {
        self.streams() && !self.wants_usage() && engine != Engine::Trtllm
    }

    /// The body for an engine of this kind.
    pub fn body_for(&self, engine: Engine) -> Bytes {
        let adds_usage = self.adds_usage(engine);
        let strips = engine == Engine::Trtllm && self.edits.own_blocks;
        if !adds_usage && !strips && self.edits.always.is_empty() {
            return self.bytes.clone();
        }
        let body = self.edits.applied(&self.bytes, adds_usage);
        if strips { without_own_blocks(&body).unwrap_or(body) } else { body }
    }
}

/// A body that is passed through, with its client's salt. Engines that take none for it refuse it, and rightly so.
pub fn salted(bytes: &Bytes, imposed: &Imposed) -> Result<Bytes, RouterError> {
    refuse_list(bytes)?;
    let raw: Raw<'_> = serde_json::from_slice(bytes).map_err(|_| json_error::<Raw<'_>>(bytes))?;
    raw.refuse_ways_around()?;
    let own = raw.cache_salt.and_then(|salt| serde_json::from_str::<String>(salt.get()).ok());
    // What cannot be read here an engine might still read: it counts as the most urgent.
    let number = |said: &RawValue| serde_json::from_str::<Option<i32>>(said.get()).unwrap_or(Some(i32::MIN));
    let priority = raw.priority.and_then(number);
    let mut view = GenerateRequest { cache_salt: own, priority, ..GenerateRequest::default() };
    let edits = Edits::find(bytes, &raw, &mut view, Some(imposed));
    Ok(edits.applied(bytes, false))
}

/// A list would be read as a struct's fields in order.
fn refuse_list(bytes: &[u8]) -> Result<(), RouterError> {
    if bytes.trim_ascii_start().first().is_some_and(|first| *first == b'[') {
        let message = "the body is not JSON of the right kind: a list, expected an object";
        return Err(RouterError::bad_request(None, message));
    }
    Ok(())
}

impl Edits {
    /// What is imposed changes the view as well.
    fn find(bytes: &Bytes, raw: &Raw<'_>, view: &mut GenerateRequest, imposed: Option<&Imposed>) -> Self {
        let place = |value: &RawValue| {
            // A raw value borrows from the body, so its place is where it points.
            let start = value.get().as_ptr() as usize - bytes.as_ptr() as usize;
            start..start + value.get().len()
        };
        let start = bytes.iter().position(|byte| *byte == b'{').map_or(0, |at| at + 1);
        let empty = bytes[start..].trim_ascii_start().first() == Some(&b'}');
        let mut always = Vec::new();
        if let Some(xargs) = raw.vllm_xargs
            && let Some(without) = without_report_mode(xargs.get())
        {
            always.push(("vllm_xargs", (Some(place(xargs)), without)));
        }
        if let Some(salt) = imposed.and_then(|imposed| imposed.salt(view.cache_salt.as_deref())) {
            always.push(("cache_salt", (raw.cache_salt.map(place), json!(salt).to_string())));
            view.cache_salt = Some(salt);
        }
        if let Some(number) = imposed.and_then(|imposed| imposed.priority(view.priority)) {
            always.push(("priority", (raw.priority.map(place), number.to_string())));
            view.priority = Some(number);
        }
        Self {
            start,
            empty,
            stream_options: raw.stream_options.filter(|_| view.streams()).map(place),
            with_usage: with_usage(raw.stream_options.map_or("{}", RawValue::get)),
            always,
            own_blocks: raw.ext.is_some() || raw.nvext.is_some(),
        }
    }

    fn applied(&self, bytes: &Bytes, adds_usage: bool) -> Bytes {
        let usage = (self.stream_options.clone(), self.with_usage.clone());
        let usage = adds_usage.then_some(("stream_options", usage));
        let (mut replaced, mut added) = (Vec::new(), String::new());
        for (name, (place, value)) in usage.iter().chain(&self.always) {
            match place {
                Some(place) => replaced.push((place, value)),
                None => added.push_str(&format!("\"{name}\":{value},")),
            }
        }
        if self.empty {
            added.pop();
        }
        replaced.sort_by_key(|(place, _)| place.start);
        let mut body = BytesMut::with_capacity(bytes.len() + added.len() + ROOM);
        body.extend_from_slice(&bytes[..self.start]);
        body.extend_from_slice(added.as_bytes());
        let mut from = self.start;
        for (place, with) in replaced {
            body.extend_from_slice(&bytes[from..place.start]);
            body.extend_from_slice(with.as_bytes());
            from = place.end;
        }
        body.extend_from_slice(&bytes[from..]);
        body.freeze()
    }
}

/// What a field may grow by before the body has to be moved.
const ROOM: usize = 128;

/// Fields of an object, their values as they are written: numbers of any size, any depth.
type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// The client's stream options, and usage with them.
fn with_usage(options: &str) -> String {
    let mut options: Fields<'_> = serde_json::from_str(options).unwrap_or_default();
    options.insert("include_usage".to_owned(), RawValue::TRUE);
    // Texts and what was JSON before can always be written.
    serde_json::to_string(&options).unwrap_or_else(|_| r#"{"include_usage":true}"#.to_owned())
}

/// The other fields, their values as they were.
fn without_own_blocks(body: &[u8]) -> Option<Bytes> {
    let mut fields: Fields<'_> = serde_json::from_slice(body).ok()?;
    fields.retain(|name, _| name != "ext" && name != "nvext");
    serde_json::to_vec(&fields).ok().map(Bytes::from)
}

/// Nothing when there is nothing to take out.
fn without_report_mode(xargs: &str) -> Option<String> {
    let mut xargs: Fields<'_> = serde_json::from_str(xargs).ok()?;
    xargs.remove("kv_cache_report_mode")?;
    serde_json::to_string(&xargs).ok()
}

/// What is wrong with a body, and where: parsed once more, slowly.
pub fn json_error<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> RouterError {
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    match serde_path_to_error::deserialize::<_, T>(&mut parser) {
        Err(error) => {
            let path = error.path().to_string();
            let param = (path != "." && path != "?").then_some(path);
            let cause = error.into_inner();
            let message = match (&param, cause.classify()) {
                (Some(path), serde_json::error::Category::Data) => format!("`{path}`: {cause}"),
                _ => format!("the body is not JSON: {cause}"),
            };
            RouterError::bad_request(param, message)
        }
        // Only what follows the value can be wrong then.
        Ok(_) => RouterError::bad_request(None, "the body has more than one JSON value, expected one object"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn chat(body: &str) -> Result<ClientRequest, RouterError> {
        ClientRequest::read(Endpoint::Chat, Bytes::copy_from_slice(body.as_bytes()))
    }

    fn sent(body: &str, engine: Engine) -> String {
        String::from_utf8(chat(body).unwrap().body_for(engine).to_vec()).unwrap()
    }

    #[test]
    fn bytes_stay_as_they_are_unless_a_feature_needs_otherwise() {
        let plain = r#" { "messages" : [{"role":"user","content":"hi"}], "odd":  1e3, "nvext": {"a": 1} } "#;
        assert_eq!(sent(plain, Engine::Vllm), plain);
        let stream = r#"{"stream": true, "messages": [{}]}"#;
        assert_eq!(
            sent(stream, Engine::Vllm),
            r#"{"stream_options":{"include_usage":true},"stream": true, "messages": [{}]}"#
        );
        assert_eq!(sent(stream, Engine::Trtllm), stream, "it sends usage unasked");
        let asked = r#"{"stream":true,"stream_options":{"include_usage":true},"messages":[{}]}"#;
        assert_eq!(sent(asked, Engine::Vllm), asked);
        for refused in ["{\"include_usage\": false, \"x\": 1}", "{\"x\": 1}"] {
            let body = format!(r#"{{"stream":true,"stream_options":{refused} ,"messages":[{{}}]}}"#);
            let sent: Value = serde_json::from_str(&sent(&body, Engine::Vllm)).unwrap();
            assert_eq!(sent["stream_options"]["include_usage"], true, "{body}");
            assert_eq!(sent["stream_options"]["x"], 1);
        }
        let null = r#"{"stream":true,"stream_options":null,"messages":[{}]}"#;
        let sent_null: Value = serde_json::from_str(&sent(null, Engine::Vllm)).unwrap();
        assert_eq!(sent_null["stream_options"]["include_usage"], true);
        assert_eq!(sent_null.as_object().unwrap().len(), 3, "no field twice");
        let report = r#"{"messages":[{}],"vllm_xargs":{"a":1,"kv_cache_report_mode":"full"}}"#;
        assert_eq!(sent(report, Engine::Vllm), r#"{"messages":[{}],"vllm_xargs":{"a":1}}"#);
        // Values that no number here could hold, and ones too deep to be looked into.
        let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        for value in ["1e999", "123456789012345678901234567890", &deep] {
            let report = format!(
                r#"{{"messages":[{{}}],"vllm_xargs":{{"a":{value},"kv_cache_report_mode":"full"}}}}"#
            );
            let expected = format!(r#"{{"messages":[{{}}],"vllm_xargs":{{"a":{value}}}}}"#);
            assert_eq!(sent(&report, Engine::Vllm), expected);
            let asks = format!(r#"{{"messages":[{{}}],"stream":true,"stream_options":{{"x":{value}}}}}"#);
            let asked = format!(r#""stream_options":{{"include_usage":true,"x":{value}}}"#);
            assert!(sent(&asks, Engine::Vllm).contains(&asked));
        }
        let own = r#"{"nvext":{"a":1},"messages":[ {} ],"ext":[2]}"#;
        assert_eq!(sent(own, Engine::Trtllm), r#"{"messages":[ {} ]}"#);
        assert_eq!(sent(own, Engine::Vllm), own);
    }

    fn imposed(salt: Option<&str>, ceiling: Option<Priority>) -> Imposed {
        Imposed { salt: salt.map(str::to_owned), ceiling }
    }

    #[test]
    fn a_keys_salt_is_in_every_body_and_no_client_gets_around_it() {
        let (tenant, plain) = (imposed(Some("a"), None), imposed(None, None));
        for (imposed, body, expected) in [
            (&tenant, r#"{"messages":[{}]}"#, Some("a")),
            (&tenant, r#"{"messages":[{}],"cache_salt":null}"#, Some("a")),
            (&tenant, r#"{"messages":[{}],"cache_salt":""}"#, Some("a")),
            (&tenant, r#"{"messages":[{}],"cache_salt":"b"}"#, Some("a/b")),
            (&tenant, r#"{"messages":[{}],"\u0063ache_salt":"b"}"#, Some("a/b")),
            (&tenant, r#"{"stream":true,"cache_salt":"b/c\"","messages":[{}]}"#, Some("a/b/c\"")),
            (&plain, r#"{"messages":[{}]}"#, None),
            (&plain, r#"{"messages":[{}],"cache_salt":"a"}"#, Some("/a")),
            (&plain, r#"{"messages":[{}],"cache_salt":"a/b"}"#, Some("/a/b")),
        ] {
            let bytes = Bytes::copy_from_slice(body.as_bytes());
            let read = ClientRequest::read_imposed(Endpoint::Chat, bytes.clone(), Some(imposed)).unwrap();
            assert_eq!(read.view.cache_salt.as_deref(), expected, "{body}");
            for sent in
                [read.body_for(Engine::Vllm), read.body_for(Engine::Trtllm), salted(&bytes, imposed).unwrap()]
            {
                let text = std::str::from_utf8(&sent).unwrap();
                let sent: Value = serde_json::from_str(text).unwrap();
                assert_eq!(sent["cache_salt"].as_str(), expected, "{body}");
                let names = text.matches("ache_salt\"").count();
                assert_eq!(names, usize::from(expected.is_some()), "once: {text}");
            }
        }
        assert_eq!(salted(&Bytes::from_static(b" { } "), &tenant).unwrap(), r#" {"cache_salt":"a" } "#);
        let twice = Bytes::from_static(br#"{"messages":[{}],"cache_salt":"b","cache_salt":"c"}"#);
        assert!(ClientRequest::read_imposed(Endpoint::Chat, twice.clone(), Some(&tenant)).is_err());
        assert!(salted(&twice, &tenant).is_err() && salted(&Bytes::from_static(b"[{}]"), &tenant).is_err());
    }

    #[test]
    fn a_client_is_no_more_urgent_than_its_key() {
        for (ceiling, own, expected) in [
            (Priority::Normal, "-5", 0),
            (Priority::Normal, "0", 0),
            (Priority::Normal, "7", 7),
            (Priority::Low, "0", 1),
            (Priority::High, "-5", -5),
        ] {
            let body = format!(r#"{{"messages":[{{}}],"priority": {own} }}"#);
            let imposed = imposed(None, Some(ceiling));
            let read =
                ClientRequest::read_imposed(Endpoint::Chat, body.clone().into(), Some(&imposed)).unwrap();
            assert_eq!(read.view.priority, Some(expected), "{body}");
            let sent: Value = serde_json::from_slice(&read.body_for(Engine::Vllm)).unwrap();
            assert_eq!(sent["priority"], expected, "{body}");
        }
        // Some engines take a number in any spelling.
        for spelt in ["-10.0", "\"-10\"", "-1e9", "-3000000000"] {
            let body = Bytes::from(format!(r#"{{"input":"x","priority":{spelt}}}"#));
            let sent = salted(&body, &imposed(None, Some(Priority::Normal))).unwrap();
            assert_eq!(sent, r#"{"input":"x","priority":0}"#, "{spelt}");
        }
    }

    #[test]
    fn what_is_malformed_is_named_by_its_path() {
        for (body, param, says) in [
            ("", None, "not JSON: EOF"),
            ("[]", None, "expected an object"),
            ("{\"messages\": [{}], }", None, "not JSON"),
            ("{\"messages\": [{}]} {}", None, "more than one JSON value"),
            ("{}", Some("messages"), "`messages` is missing"),
            ("{\"messages\": []}", Some("messages"), "one message or more"),
            ("{\"messages\": [{}, 7]}", Some("messages[1]"), "expected a map"),
            ("{\"messages\": [{}], \"max_tokens\": \"x\"}", Some("max_tokens"), "`max_tokens`: invalid type"),
            ("{\"messages\": [{}], \"model\": \"a\", \"model\": \"b\"}", None, "duplicate field"),
            (
                "{\"messages\": [{}], \"stream_options\": {\"include_usage\": 3}}",
                Some("stream_options.include_usage"),
                "expected a boolean",
            ),
        ] {
            let error = chat(body).unwrap_err();
            let shown: Value = serde_json::from_slice(&error.body()).unwrap();
            let message = shown["error"]["message"].as_str().unwrap();
            assert!(message.contains(says), "{body}: {message}");
            if param.is_some() {
                assert_eq!(shown["error"]["param"].as_str(), param, "{body}: {message}");
            }
            assert_eq!(error.status().as_u16(), 400);
        }
        let odd = Bytes::from_static(b"{\"messages\": [{}], \"odd\": {\"a\xFF\": 1}}");
        let error = ClientRequest::read(Endpoint::Chat, odd).unwrap_err();
        assert!(error.to_string().contains("byte 30 is not UTF-8"), "{error}");
        let error =
            ClientRequest::read(Endpoint::Completions, Bytes::from_static(b"{\"prompt\": {}}")).unwrap_err();
        assert!(error.to_string().contains("`prompt`"), "{error}");
    }
}
