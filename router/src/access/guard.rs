//! Requests that a browser makes on behalf of somebody else's page.
//!
//! A page can have a browser send requests to any address that browser reaches, be it this machine's own. The browser
//! says whose page it is; programs that are no browsers say nothing, and nothing changes for them.

use std::net::IpAddr;

use hyper::header::{HOST, HeaderValue, ORIGIN};
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Uri};

use crate::error::RouterError;

/// Who besides its own pages may speak to a listener through a browser.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    pub origins: &'a [String],
    /// What would be right.
    pub expected: &'static str,
}

impl Site<'_> {
    /// Whether the operator lets that origin's pages in.
    pub fn lists(&self, origin: &HeaderValue) -> bool {
        self.origins.iter().any(|listed| listed == "*" || listed.as_bytes() == origin.as_bytes())
    }
}

/// The host a request is for.
fn host<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> Option<&'r str> {
    // HTTP/2 has it in place of the header.
    let authority = uri.authority().map(Authority::as_str);
    authority.or_else(|| headers.get(HOST).and_then(|host| host.to_str().ok()))
}

/// Whether some other site's page made this request, and the words for it.
pub fn from_elsewhere(uri: &Uri, headers: &HeaderMap, site: Site<'_>) -> Result<(), RouterError> {
    let refused = || {
        let message = format!("a browser sent this for another site's page, expected {}", site.expected);
        Err(RouterError::Forbidden { message })
    };
    if let Some(origin) = headers.get(ORIGIN) {
        if site.lists(origin) || is_own(origin, host(uri, headers)) {
            return Ok(());
        }
        return refused();
    }
    // Browsers leave the origin out of some requests, but not this.
    match headers.get("sec-fetch-site").map(HeaderValue::as_bytes) {
        Some(b"cross-site" | b"same-site") => refused(),
        _ => Ok(()),
    }
}

fn is_own(origin: &HeaderValue, host: Option<&str>) -> bool {
    let authority = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    authority.is_some_and(|(_, authority)| host.is_some_and(|host| host.eq_ignore_ascii_case(authority)))
}

/// A page elsewhere whose name was made to lead here would pass for our own. On a loopback address only this machine's
/// own names are right.
pub fn own_host(uri: &Uri, headers: &HeaderMap) -> Result<(), RouterError> {
    // Browsers always say.
    let Some(host) = host(uri, headers) else { return Ok(()) };
    let ours = host.parse::<Authority>().is_ok_and(|host| {
        let name = host.host().trim_matches(['[', ']']);
        name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
    });
    if ours {
        return Ok(());
    }
    let message = "the request's host is not this machine, expected localhost or an IP address".to_owned();
    Err(RouterError::Forbidden { message })
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderName;

    use super::*;

    fn of(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn other_sites_pages_are_told_from_programs_and_own_pages() {
        let listed = ["https://chat.example".to_owned()];
        let uri = Uri::from_static("/v1/models");
        for (headers, passes) in [
            (of(&[("host", "r:8000")]), true),
            (of(&[("host", "r:8000"), ("origin", "http://r:8000")]), true),
            (of(&[("host", "r:8000"), ("origin", "http://R:8000")]), true),
            (of(&[("host", "r:8000"), ("origin", "https://chat.example")]), true),
            (of(&[("host", "r:8000"), ("origin", "http://r:9000")]), false),
            (of(&[("host", "r:8000"), ("origin", "https://evil.example")]), false),
            (of(&[("host", "r:8000"), ("origin", "null")]), false),
            (of(&[("host", "r:8000"), ("origin", "r:8000")]), false),
            (of(&[("origin", "http://r:8000")]), false),
            (of(&[("host", "r:8000"), ("sec-fetch-site", "cross-site")]), false),
            (of(&[("host", "r:8000"), ("sec-fetch-site", "same-site")]), false),
            (of(&[("host", "r:8000"), ("sec-fetch-site", "same-origin")]), true),
            (of(&[("host", "r:8000"), ("sec-fetch-site", "none")]), true),
        ] {
            let judged = from_elsewhere(&uri, &headers, Site { origins: &listed, expected: "" });
            assert_eq!(judged.is_ok(), passes, "{headers:?}");
        }
        let anybody = Site { origins: &["*".to_owned()], expected: "" };
        assert!(from_elsewhere(&uri, &of(&[("origin", "null")]), anybody).is_ok());
        let http2 = Uri::from_static("http://r:8000/x");
        let nobody = Site { origins: &[], expected: "" };
        assert!(from_elsewhere(&http2, &of(&[("origin", "http://r:8000")]), nobody).is_ok());
    }

    #[test]
    fn a_loopback_address_has_this_machines_names_only() {
        let uri = Uri::from_static("/admin/mode");
        for (host, passes) in [
            ("localhost:8090", true),
            ("LOCALHOST", true),
            ("127.0.0.1:8090", true),
            ("[::1]:8090", true),
            ("10.0.0.1", true),
            ("evil.example:8090", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_str(host).unwrap())]);
            assert_eq!(own_host(&uri, &headers).is_ok(), passes, "{host}");
        }
        assert!(own_host(&uri, &HeaderMap::new()).is_ok(), "no browser");
    }
}
