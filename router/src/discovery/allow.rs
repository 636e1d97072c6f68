//! Where workers may be, whoever names them.
//!
//! Whoever can announce a worker has this router connect wherever it likes, and send it clients' requests. The
//! operator's own list is not asked; what files, DNS, NATS and Kubernetes name is, and so is where an engine says that
//! its events are.

use std::net::IpAddr;

use hyper::Uri;
use ipnet::IpNet;
use kvlane_engine_adapters::engine_facts::EventEndpoint;

use crate::access::matches;
use crate::config::{EventSpec, WorkerSpec};

/// Hosts by name, `*` standing for anything, and networks; none for everything.
#[derive(Clone, Debug, Default)]
pub struct Allow(Vec<Pattern>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Any,
    Net(IpNet),
    Name(String),
}

impl Allow {
    /// Errors say what was expected.
    pub fn parse(list: &[String]) -> Result<Self, String> {
        let pattern = |text: &String| {
            if text == "*" {
                return Ok(Pattern::Any);
            }
            if let Ok(address) = text.parse::<IpAddr>() {
                return Ok(Pattern::Net(address.to_canonical().into()));
            }
            if let Ok(net) = text.parse::<IpNet>() {
                return Ok(Pattern::Net(net));
            }
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.*".contains(&byte);
            // Stars in an address would also let names in that begin like it.
            let like_an_address = text.bytes().all(|byte| byte.is_ascii_digit() || b".*".contains(&byte));
            if text.is_empty() || like_an_address || !text.bytes().all(plain) {
                return Err(format!(
                    "hosts such as *.engines.svc and networks such as 10.0.0.0/8; {text:?} is neither"
                ));
            }
            Ok(Pattern::Name(text.to_ascii_lowercase()))
        };
        list.iter().map(pattern).collect::<Result<_, _>>().map(Self)
    }

    fn has(&self, host: &str) -> bool {
        let address = host.parse::<IpAddr>().map(|address| address.to_canonical());
        self.0.iter().any(|pattern| match (pattern, &address) {
            (Pattern::Any, _) => true,
            (Pattern::Net(net), Ok(address)) => net.contains(address),
            (Pattern::Name(name), Err(_)) => matches(name, host),
            _ => false,
        })
    }

    /// Why a worker that somebody else names cannot be one.
    pub(super) fn judge(&self, spec: &WorkerSpec) -> Result<(), &'static str> {
        let uri: Option<Uri> = spec.url.parse().ok();
        let authority = uri.as_ref().and_then(Uri::authority).ok_or("it is no URL")?;
        if authority.as_str().contains('@') {
            return Err("it has a user or a password in it, expected none");
        }
        let own = plain(authority.host());
        if !self.0.is_empty() && !self.has(&own) {
            return Err("its host matches none of workers.allow");
        }
        let endpoints = match &spec.events {
            EventSpec::Zmq { events, replay, .. } => [Some(events), replay.as_ref()],
            _ => [None, None],
        };
        if endpoints.into_iter().flatten().any(|endpoint| self.is_elsewhere(endpoint, &own)) {
            return Err("its events are at a host that is not its own and matches none of workers.allow");
        }
        Ok(())
    }

    /// Whether any of these endpoints is neither at the worker's own host nor anywhere that is allowed.
    pub(super) fn refuses_events(&self, url: &str, endpoints: &[EventEndpoint]) -> bool {
        let own = url.parse::<Uri>().ok().and_then(|uri| uri.host().map(plain)).unwrap_or_default();
        let all = endpoints.iter().flat_map(|endpoint| [Some(&endpoint.events), endpoint.replay.as_ref()]);
        all.flatten().any(|endpoint| self.is_elsewhere(endpoint, &own))
    }

    fn is_elsewhere(&self, endpoint: &str, own: &str) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let host = endpoint
            .strip_prefix("tcp://")
            .and_then(|rest| rest.rsplit_once(':'))
            .map(|(host, _)| plain(host));
        host.is_none_or(|host| host != own && !self.has(&host))
    }
}

/// A host as it is compared: without brackets, capitals and the dot at its end.
fn plain(host: &str) -> String {
    host.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow(list: &[&str]) -> Allow {
        Allow::parse(&list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn hosts_and_networks_are_told_apart() {
        let some = allow(&["*.engines.svc", "gpu-7", "10.1.0.0/16", "fd00::/8", "192.0.2.7"]);
        for (url, passes) in [
            ("http://a.engines.svc:8000", true),
            ("http://A.Engines.SVC.:8000/v1", true),
            ("http://gpu-7", true),
            ("http://10.1.2.3:8000", true),
            ("http://[fd00::1]:8000", true),
            ("http://[::ffff:10.1.2.3]:8000", true),
            ("http://192.0.2.7", true),
            ("http://engines.svc:8000", false),
            ("http://a.engines.svc.evil.example", false),
            ("http://10.2.0.1:8000", false),
            ("http://169.254.169.254", false),
            ("http://[::1]:8000", false),
            // Other ways to write 10.1.2.3 that a resolver would take.
            ("http://167838211", false),
            ("http://10.1.515", false),
            ("http://0x0a.1.2.3", false),
            ("http://10.1.2.3@evil.example", false),
        ] {
            assert_eq!(some.judge(&WorkerSpec::at(url)).is_ok(), passes, "{url}");
        }
        assert!(allow(&["*"]).judge(&WorkerSpec::at("http://127.0.0.1")).is_ok());
        let all = Allow::default();
        assert!(all.judge(&WorkerSpec::at("http://anywhere")).is_ok());
        assert!(all.judge(&WorkerSpec::at("http://me:secret@anywhere")).unwrap_err().contains("password"));
        for wrong in ["", "10.*", "10.0.0.0/33", "http://a", "a b", "[::1]"] {
            let error = Allow::parse(&[wrong.to_owned()]).unwrap_err();
            assert!(error.contains("is neither"), "{wrong}: {error}");
        }
    }

    #[test]
    fn events_are_at_the_workers_own_host_or_where_workers_may_be() {
        let some = allow(&["10.0.0.0/8"]);
        let at = |events: &str, replay: Option<&str>| EventEndpoint {
            rank: 0,
            events: events.to_owned(),
            replay: replay.map(str::to_owned),
            topic: String::new(),
        };
        for (events, replay, refused) in [
            ("tcp://engine:5557", None, false),
            ("tcp://ENGINE:5557", Some("tcp://10.0.0.1:1"), false),
            ("tcp://169.254.169.254:80", None, true),
            ("tcp://engine:5557", Some("tcp://127.0.0.1:22"), true),
            ("ipc:///tmp/socket", None, true),
        ] {
            let endpoints = [at(events, replay)];
            assert_eq!(some.refuses_events("http://engine:8000", &endpoints), refused, "{events} {replay:?}");
            assert!(!Allow::default().refuses_events("http://engine:8000", &endpoints));
        }
        let listed = WorkerSpec::parse("url=http://10.0.0.1:1,events=tcp://127.0.0.1:22").unwrap();
        assert!(some.judge(&listed).unwrap_err().contains("its events"));
    }
}
