//! One worker as an operator writes it down.

use kvlane_engine_adapters::engine_facts::Engine;
use rustls::pki_types::ServerName;
use serde::Serialize;

/// Where a worker's KV events are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EventSpec {
    /// The engine is asked.
    #[default]
    Asked,
    /// Nowhere.
    Off,
    /// They come over NATS.
    Nats,
    /// TensorRT-LLM's queue is polled.
    Poll,
    /// A ZeroMQ endpoint, and one for replays.
    Zmq { events: String, replay: Option<String>, topic: String },
}

/// `http://host:8001`, or `url=http://host:8001,events=tcp://host:5557,replay=tcp://host:5558,slots=64`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorkerSpec {
    /// Without a slash at its end.
    pub url: String,
    /// What it is called in logs; the URL's host and port when not said.
    pub name: Option<String>,
    pub events: EventSpec,
    /// Requests it runs at a time.
    pub slots: Option<u32>,
    pub engine: Option<Engine>,
    /// Spoken to in HTTP/2, known beforehand.
    pub http2: bool,
    /// The name its certificate has to be for, where that is not its URL's host.
    pub server_name: Option<String>,
}

/// A URL a worker can have: HTTP to a host, plain or with TLS, and maybe a path.
pub(crate) fn checked_url(url: &str) -> Result<String, String> {
    let trimmed = url.trim().trim_end_matches('/');
    let uri: hyper::Uri = trimmed.parse().map_err(|error| format!("a URL: {url:?} is none ({error})"))?;
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        let instead = "a URL without user and password; proxy.worker_api_key_file has what engines are shown";
        return Err(instead.to_owned());
    }
    match (uri.scheme_str(), uri.authority(), uri.query()) {
        (Some("http" | "https"), Some(authority), None) if is_host(authority.host()) => {
            Ok(trimmed.to_owned())
        }
        _ => Err(format!("http://HOST:PORT or https://HOST:PORT instead of {url:?}")),
    }
}

/// The library takes any letter that URLs may have somewhere.
fn is_host(host: &str) -> bool {
    let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match inside {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && host.chars().all(|letter| letter.is_ascii_alphanumeric() || "-._".contains(letter))
        }
    }
}

impl WorkerSpec {
    /// Nothing known but the URL.
    pub fn at(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            name: None,
            events: EventSpec::Asked,
            slots: None,
            engine: None,
            http2: false,
            server_name: None,
        }
    }

    pub fn parse(text: &str) -> Result<Self, String> {
        // A path may have the sign as well.
        let url = text.trim_start().starts_with("http") && !text.contains(',');
        if url || !text.contains('=') {
            return Ok(Self::at(checked_url(text)?));
        }
        let mut spec = Self::at("");
        let (mut events, mut replay, mut topic) = (None, None, String::new());
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| format!("KEY=VALUE pairs separated by commas; {part:?} is none"))?;
            match key {
                "url" => spec.url = checked_url(value)?,
                "name" => spec.name = Some(value.to_owned()),
                "events" => events = Some(value.to_owned()),
                "replay" => replay = Some(endpoint(value)?),
                "topic" => value.clone_into(&mut topic),
                "slots" => {
                    let slots = value.parse().ok().filter(|slots| *slots > 0);
                    spec.slots =
                        Some(slots.ok_or_else(|| format!("slots of 1 or more instead of {value:?}"))?);
                }
                "engine" => {
                    let engine = Engine::parse(value)
                        .ok_or_else(|| format!("engine vllm, sglang or trtllm instead of {value:?}"))?;
                    spec.engine = Some(engine);
                }
                "http2" => {
                    spec.http2 =
                        value.parse().map_err(|_| format!("http2 true or false instead of {value:?}"))?;
                }
                "server_name" => {
                    ServerName::try_from(value)
                        .map_err(|_| format!("a host's name as server_name instead of {value:?}"))?;
                    spec.server_name = Some(value.to_owned());
                }
                _ => {
                    return Err(format!(
                        "the keys url, name, events, replay, topic, slots, engine, http2 and server_name; {key:?} is \
                         none of them"
                    ));
                }
            }
        }
        if spec.url.is_empty() {
            return Err("a worker with url=http://HOST:PORT".to_owned());
        }
        if spec.server_name.is_some() && !spec.url.starts_with("https://") {
            return Err("server_name together with url=https://…".to_owned());
        }
        spec.events = match events.as_deref() {
            None => match spec.engine {
                Some(Engine::Trtllm) => EventSpec::Poll,
                _ => EventSpec::Asked,
            },
            Some("off") => EventSpec::Off,
            Some("nats") => EventSpec::Nats,
            Some("poll") => EventSpec::Poll,
            Some(events) => EventSpec::Zmq { events: endpoint(events)?, replay: replay.take(), topic },
        };
        if replay.is_some() {
            return Err("replay=tcp://… together with events=tcp://…".to_owned());
        }
        Ok(spec)
    }
}

fn endpoint(text: &str) -> Result<String, String> {
    let port = text.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':'));
    match port.and_then(|(host, port)| (!host.is_empty()).then(|| port.parse::<u16>().ok())?) {
        Some(_) => Ok(text.to_owned()),
        None => Err(format!("off, nats, poll or tcp://HOST:PORT instead of {text:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_a_url_or_pairs() {
        assert_eq!(WorkerSpec::parse("http://h:8001/").unwrap(), WorkerSpec::at("http://h:8001"));
        let spec = WorkerSpec::parse(
            "url=http://h:1,events=tcp://h:5557,replay=tcp://h:5558,slots=64,engine=vllm,name=a,http2=true",
        )
        .unwrap();
        let events = EventSpec::Zmq {
            events: "tcp://h:5557".into(),
            replay: Some("tcp://h:5558".into()),
            topic: String::new(),
        };
        assert_eq!((spec.events, spec.slots, spec.http2), (events, Some(64), true));
        assert_eq!(
            WorkerSpec::parse("url=http://h:1,engine=trtllm").unwrap().events,
            EventSpec::Poll,
            "its events are polled"
        );
        for url in ["http://h/a=b", "http://[::1]:8000", "https://gpu-0.models_1.svc:8000/v"] {
            assert_eq!(WorkerSpec::parse(url).unwrap().url, url);
            assert_eq!(WorkerSpec::parse(&format!("url={url}")).unwrap().url, url);
        }
        let spec = WorkerSpec::parse("url=https://10.0.0.7:8000,server_name=vllm.models.svc").unwrap();
        assert_eq!(
            (spec.url.as_str(), spec.server_name.as_deref()),
            ("https://10.0.0.7:8000", Some("vllm.models.svc"))
        );
        for (wrong, says) in [
            ("h:8001", "http://HOST:PORT"),
            ("http://me:secret@h:8001", "a URL without user and password"),
            ("ftp://h", "http://HOST:PORT"),
            ("url=http://hansweAlay=tcp://h:0", "http://HOST:PORT"),
            ("http://h:8001,slots=3", "\"http://h:8001\" is none"),
            ("http://[h]:8001", "http://HOST:PORT"),
            ("url=http://h,server_name=a", "together with url=https://"),
            ("url=https://h,server_name=a b", "a host's name"),
            ("slots=3", "url=http://HOST:PORT"),
            ("url=http://h,slots=0", "1 or more"),
            ("url=http://h,color=red", "\"color\" is none"),
            ("url=http://h,events=5557", "tcp://HOST:PORT"),
            ("url=http://h,replay=tcp://h:1", "together with events"),
            ("url=http://h,engine=llama.cpp", "vllm, sglang or trtllm"),
            ("url=http://h,odd", "\"odd\" is none"),
        ] {
            let error = WorkerSpec::parse(wrong).unwrap_err();
            assert!(error.contains(says), "{wrong}: {error}");
        }
    }
}
