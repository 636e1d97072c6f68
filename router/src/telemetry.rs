//! Who a request is: its id, its place in a trace, and lines and spans about it.

mod otlp;

use std::fmt;
use std::sync::Arc;

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};

pub use self::otlp::{Exporter, Span};

pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// What a client calls its request, or a name made for it.
#[derive(Clone, Debug)]
pub struct RequestId(HeaderValue);

/// Longer ones are replaced.
const MAX_ID: usize = 128;

impl RequestId {
    pub fn of(headers: &HeaderMap) -> Self {
        let usable = |id: &&HeaderValue| {
            !id.is_empty() && id.len() <= MAX_ID && id.as_bytes().iter().all(u8::is_ascii_graphic)
        };
        headers.get(REQUEST_ID).filter(usable).cloned().map_or_else(Self::make, Self)
    }

    /// A random UUID.
    fn make() -> Self {
        let bits = rand::random::<u128>() & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
        let hex = format!("{bits:032x}");
        let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
        // Hexadecimal digits are always fine in a header.
        Self(HeaderValue::from_str(&parts.join("-")).unwrap_or_else(|_| HeaderValue::from_static("-")))
    }

    pub fn header(&self) -> HeaderValue {
        self.0.clone()
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_str().unwrap_or_default())
    }
}

/// A place in a trace, as W3C's `traceparent` writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    pub trace: u128,
    pub span: u64,
    /// The client's span.
    pub parent: Option<u64>,
    pub sampled: bool,
}

impl TraceContext {
    /// A child of the client's span, or the beginning of a trace; `sampled` decides for those.
    pub fn of(headers: &HeaderMap, sampled: impl FnOnce() -> bool) -> Self {
        let span = rand::random::<u64>().max(1);
        match headers.get(TRACEPARENT).and_then(|value| parse_traceparent(value.to_str().ok()?)) {
            Some((trace, parent, sampled)) => Self { trace, span, parent: Some(parent), sampled },
            None => Self { trace: rand::random::<u128>().max(1), span, parent: None, sampled: sampled() },
        }
    }

    pub fn header(&self) -> Option<HeaderValue> {
        let flags = u8::from(self.sampled);
        HeaderValue::from_str(&format!("00-{:032x}-{:016x}-{flags:02x}", self.trace, self.span)).ok()
    }
}

fn parse_traceparent(text: &str) -> Option<(u128, u64, bool)> {
    let mut parts = text.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hex = |text: &str, length: usize| {
        text.len() == length
            && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    if !(hex(version, 2) && version != "ff" && hex(trace, 32) && hex(span, 16) && hex(flags, 2)) {
        return None;
    }
    // Later versions may say more; this one may not.
    if version == "00" && parts.next().is_some() {
        return None;
    }
    let (trace, span) = (u128::from_str_radix(trace, 16).ok()?, u64::from_str_radix(span, 16).ok()?);
    (trace != 0 && span != 0).then_some((trace, span, u8::from_str_radix(flags, 16).ok()? & 1 == 1))
}

/// Traces a share of requests, when somebody collects them.
#[derive(Clone, Debug, Default)]
pub struct Tracer {
    exporter: Option<Arc<Exporter>>,
    ratio: f64,
}

impl Tracer {
    pub fn new(exporter: Option<Arc<Exporter>>, ratio: f64) -> Self {
        Self { exporter, ratio }
    }

    /// The request's span, when somebody collects it. Otherwise the client's own place in its trace is left alone.
    pub fn begin(&self, headers: &HeaderMap, name: &'static str, id: &RequestId) -> Option<Span> {
        let exporter = self.exporter.as_ref()?;
        let context = TraceContext::of(headers, || rand::random::<f64>() < self.ratio);
        context.sampled.then(|| Span::begin(exporter.clone(), context, name, id.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn ids_are_the_clients_or_made() {
        assert_eq!(RequestId::of(&headers(REQUEST_ID, "abc-1")).to_string(), "abc-1");
        let made = RequestId::of(&HeaderMap::new()).to_string();
        assert_eq!((made.len(), made.as_bytes()[14], made.matches('-').count()), (36, b'4', 4));
        assert_ne!(RequestId::of(&headers(REQUEST_ID, &"x".repeat(200))).to_string().len(), 200);
        assert_eq!(RequestId::of(&headers(REQUEST_ID, "with space")).to_string().len(), 36);
    }

    #[test]
    fn traces_go_on_with_a_span_of_our_own() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = TraceContext::of(&headers(TRACEPARENT, parent), || false);
        assert_eq!((context.parent, context.sampled), (Some(0xb7ad_6b71_6920_3331), true));
        let header = context.header().unwrap();
        let header = header.to_str().unwrap();
        assert!(header.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && header.ends_with("-01"));
        assert_ne!(header, parent);
        for wrong in [
            "",
            "00-0-0-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            &format!("{parent}-x"),
        ] {
            assert_eq!(TraceContext::of(&headers(TRACEPARENT, wrong), || false).parent, None, "{wrong}");
        }
    }
}
