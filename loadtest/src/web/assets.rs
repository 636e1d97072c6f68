//! The page's files, which are part of the program. None are there when it was built without them.

use axum::body::Body;
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    IF_NONE_MATCH, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

pub(super) struct File {
    path: &'static str,
    bytes: &'static [u8],
    gzip: Option<&'static [u8]>,
    etag: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// Everything comes from here, and scripts and styles are files.
const POLICY: &str = "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; connect-src 'self'; \
                      frame-ancestors 'self'; base-uri 'none'; object-src 'none'";

pub(super) fn any() -> bool {
    !FILES.is_empty()
}

fn kind(path: &str) -> &'static str {
    match path.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "json" => "application/json",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

/// A file by its path; none when there is no such file.
pub(super) fn answer(path: &str, headers: &HeaderMap) -> Option<Response> {
    found(FILES, path, headers)
}

fn found(files: &[File], path: &str, headers: &HeaderMap) -> Option<Response> {
    let path = if path.is_empty() { "index.html" } else { path };
    let file = files.iter().find(|file| file.path == path)?;
    let says = |name, wanted: &str| {
        headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
            .is_some_and(|value| value.contains(wanted))
    };
    let same = says(IF_NONE_MATCH, file.etag);
    let packed = file.gzip.filter(|_| says(ACCEPT_ENCODING, "gzip") && !says(ACCEPT_ENCODING, "gzip;q=0"));
    let bytes = if same { &[][..] } else { packed.unwrap_or(file.bytes) };
    let mut response = Body::from(bytes).into_response();
    if same {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    // Names of what is built have a hash in them; what they are called by has not.
    let kept = if path.starts_with("assets/") { "public, max-age=31536000, immutable" } else { "no-cache" };
    let mut set =
        |name, value: &'static str| response.headers_mut().insert(name, HeaderValue::from_static(value));
    set(CONTENT_TYPE, kind(path));
    set(CACHE_CONTROL, kept);
    set(ETAG, file.etag);
    set(VARY, "accept-encoding");
    set(X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(REFERRER_POLICY, "no-referrer");
    set(CONTENT_SECURITY_POLICY, POLICY);
    if packed.is_some() && !same {
        set(CONTENT_ENCODING, "gzip");
    }
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: File =
        File { path: "index.html", bytes: b"<!doctype html>", gzip: Some(b"packed"), etag: "W/\"1234\"" };

    fn asked(path: &str, headers: &[(axum::http::HeaderName, &'static str)]) -> Option<Response> {
        let headers = headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
        found(&[FILE, File { path: "assets/a.js", gzip: None, ..FILE }], path, &headers.collect())
    }

    #[tokio::test]
    async fn a_file_is_given_once_and_packed_to_who_can_unpack_it() {
        let body = async |response: Response| axum::body::to_bytes(response.into_body(), 100).await.unwrap();
        let plain = asked("", &[]).unwrap();
        let header =
            |of: &Response, name| of.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(header(&plain, CONTENT_TYPE).as_deref(), Some("text/html; charset=utf-8"));
        assert_eq!(
            (header(&plain, CONTENT_ENCODING), header(&plain, CACHE_CONTROL).as_deref()),
            (None, Some("no-cache"))
        );
        assert!(header(&plain, CONTENT_SECURITY_POLICY).unwrap().starts_with("default-src 'self'"));
        assert_eq!(&body(plain).await[..], b"<!doctype html>");
        let packed = asked("index.html", &[(ACCEPT_ENCODING, "br, gzip")]).unwrap();
        assert_eq!(header(&packed, CONTENT_ENCODING).as_deref(), Some("gzip"));
        assert_eq!(&body(packed).await[..], b"packed");
        assert_eq!(header(&asked("", &[(ACCEPT_ENCODING, "gzip;q=0")]).unwrap(), CONTENT_ENCODING), None);
        let again = asked("", &[(IF_NONE_MATCH, "W/\"1234\""), (ACCEPT_ENCODING, "gzip")]).unwrap();
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        assert!(body(again).await.is_empty());
        let hashed = asked("assets/a.js", &[(ACCEPT_ENCODING, "gzip")]).unwrap();
        assert!(header(&hashed, CACHE_CONTROL).unwrap().ends_with("immutable"));
        assert_eq!(header(&hashed, CONTENT_ENCODING), None);
        assert!(asked("../secret", &[]).is_none());
    }
}
