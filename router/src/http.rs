//! The front door: what is asked, by path and method.

mod admin;
mod completions;
mod connection;
mod continuation;
mod crowd;
mod exposition;
mod last_call;
mod listener;
mod paced;
mod tls;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, EXPECT, HeaderValue, ORIGIN};
use hyper::{Method, Request, Response, StatusCode, Version};
use serde_json::{Value, json};
use tokio::time::Instant;

pub use self::listener::{Edge, Listener};
pub use self::tls::{ServerTls, server_pair};
use crate::access::{Key, Site, from_elsewhere, own_host};
use crate::app::Router;
use crate::error::{Fault, RouterError};
use crate::openai::Endpoint;
use crate::proxy::{Body, refuse};
use crate::telemetry::{REQUEST_ID, RequestId};

/// Which of the two listeners a request came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    Public,
    Admin,
}

const OPENAPI: &str = include_str!("../openapi.json");

/// Answers one request. Whatever goes wrong is an answer too.
pub async fn answer(
    router: Arc<Router>,
    door: Door,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let arrived = Instant::now();
    let id = RequestId::of(request.headers());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let version = request.version();
    let (answered, key) = match door {
        Door::Public => public(&router, request, arrived, &id).await,
        Door::Admin => (admin::answer(&router, request).await, None),
    };
    let mut response = answered.unwrap_or_else(|error| {
        // As a field, because it may repeat what the client said, and only fields are escaped.
        let (status, said) = (error.status().as_u16(), error.to_string());
        if error.fault() != Fault::Client {
            tracing::warn!(request_id = %id, %method, path, status, error = said, "refused");
        } else {
            tracing::debug!(request_id = %id, %method, path, status, error = said, "refused");
        }
        refuse(&error)
    });
    response.headers_mut().insert(REQUEST_ID, id.header());
    // Who hears this goes elsewhere by itself, before its connection is closed under its next request.
    if router.draining() && version < Version::HTTP_2 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if version == Version::HTTP_2 {
        let patience = Duration::from_millis(router.config.server.stalled_client_ms);
        response = response.map(|body| body.unless_unread(patience));
    }
    if let Some(key) = key {
        key.tell_limits(response.headers_mut());
    }
    Ok(response)
}

/// The answer, and the key it was asked with. Who may not ask is turned away before anything else is done.
async fn public(
    router: &Arc<Router>,
    request: Request<Incoming>,
    arrived: Instant,
    id: &RequestId,
) -> (Result<Response<Body>, RouterError>, Option<Arc<Key>>) {
    let key = match router.access.key(request.uri().path(), request.headers()) {
        Ok(key) => key,
        Err(error) => {
            turn_away(request, STRANGERS_BODY, STRANGERS_PATIENCE).await;
            return (Err(error), None);
        }
    };
    // Whoever shows a key is no page that has a browser send what it likes.
    let harmless = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if key.is_none() && !harmless {
        let origins = &router.config.server.cors_origins;
        let site = Site { origins, expected: "its origin in server.cors_origins" };
        let (uri, headers) = (request.uri(), request.headers());
        let checked = from_elsewhere(uri, headers, site).and_then(|()| {
            // A name that was made to lead here would pass for our own.
            let rebound = router.config.server.host.is_loopback()
                && headers.get(ORIGIN).is_some_and(|origin| !site.lists(origin));
            if rebound { own_host(uri, headers) } else { Ok(()) }
        });
        if let Err(error) = checked {
            turn_away(request, STRANGERS_BODY, STRANGERS_PATIENCE).await;
            return (Err(error), None);
        }
    }
    (known(router, request, key.as_ref(), arrived, id).await, key)
}

async fn known(
    router: &Arc<Router>,
    request: Request<Incoming>,
    key: Option<&Arc<Key>>,
    arrived: Instant,
    id: &RequestId,
) -> Result<Response<Body>, RouterError> {
    let path = request.uri().path();
    let endpoint = match path {
        "/v1/chat/completions" => Some(Endpoint::Chat),
        "/v1/completions" => Some(Endpoint::Completions),
        "/v1/embeddings" => Some(Endpoint::Embeddings),
        "/v1/responses" => Some(Endpoint::Responses),
        "/tokenize" => Some(Endpoint::Tokenize),
        "/detokenize" => Some(Endpoint::Detokenize),
        _ => None,
    };
    if let Some(endpoint) = endpoint {
        only(&request, &Method::POST, "POST")?;
        let pass = match key.map(Key::enter).transpose() {
            Ok(pass) => pass,
            Err(error) => {
                router.metrics.refused(endpoint.name(), error.class());
                turn_away(request, READ_AWAY, READ_AWAY_FOR).await;
                return Err(error);
            }
        };
        let answered = completions::answer(router, endpoint, request, pass, arrived, id).await;
        return answered
            .inspect_err(|refused| {
                // Those that got as far as a model are counted by their meter.
                if !refused.metered {
                    router.metrics.refused(endpoint.name(), refused.error.class());
                }
            })
            .map_err(|refused| refused.error);
    }
    let response = match path {
        "/health" => router.health(key.is_some() || !router.access.on()),
        "/live" => text(StatusCode::OK, "live"),
        "/ready" => match router.ready() {
            Ok(()) => text(StatusCode::OK, "ready"),
            Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, why),
        },
        "/metrics" => exposition::answer(router),
        "/version" => json_answer(StatusCode::OK, &json!({ "version": env!("CARGO_PKG_VERSION") })),
        "/v1/models" => json_answer(StatusCode::OK, &router.models(key.map(Arc::as_ref))),
        "/openapi.json" => {
            let mut response = text(StatusCode::OK, OPENAPI);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        _ => match path.strip_prefix("/v1/models/").map(decoded) {
            Some(name) if !name.is_empty() => {
                json_answer(StatusCode::OK, &router.model(&name, key.map(Arc::as_ref))?)
            }
            _ => {
                let (method, path) = (request.method().to_string(), path.to_owned());
                return Err(RouterError::UnknownPath { method, path });
            }
        },
    };
    if request.method() == Method::HEAD {
        return Ok(response);
    }
    only(&request, &Method::GET, "GET")?;
    Ok(response)
}

fn only(request: &Request<Incoming>, method: &Method, allowed: &'static str) -> Result<(), RouterError> {
    if request.method() == method {
        return Ok(());
    }
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    Err(RouterError::MethodNotAllowed { method, path, allowed })
}

/// `%2F` and its like; names of models have slashes.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high << 4 | low) as u8);
                rest = &after[2..];
            }
            (byte, ..) => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What operators may send, read without a router.
#[cfg(fuzzing)]
pub mod fuzzed {
    pub use super::admin::{read_drain, read_most, read_switch};

    pub fn decoded(text: &str) -> String {
        super::decoded(text)
    }
}

fn text(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::Whole(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

fn json_answer(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::Whole(value.to_string().into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// How much of a body that is too large is read away, so that its sender gets to read why.
const READ_AWAY: usize = 64 << 20;
/// The same for somebody without a key.
const STRANGERS_BODY: usize = 256 << 10;
const STRANGERS_PATIENCE: Duration = Duration::from_secs(1);
const READ_AWAY_FOR: Duration = Duration::from_secs(5);

/// The whole body, if it comes in time and is not too large.
async fn read_body(mut body: Incoming, limit_mib: usize, patience: Duration) -> Result<Bytes, RouterError> {
    let limit = limit_mib << 20;
    let announced = body.size_hint().exact().unwrap_or(0);
    let read = async {
        let mut whole = BytesMut::new();
        let mut first: Option<Bytes> = None;
        if announced <= limit as u64 {
            while let Some(frame) = body.frame().await {
                // The client went away, and nobody will read an answer.
                let frame =
                    frame.map_err(|_| RouterError::bad_request(None, "the request's body broke off"))?;
                let Ok(data) = frame.into_data() else { continue };
                if whole.len() + first.as_ref().map_or(0, Bytes::len) + data.len() > limit {
                    return Err(RouterError::BodyTooLarge { limit_mib });
                }
                // Most bodies come in one piece, and stay where they are.
                match first.take() {
                    None if whole.is_empty() => first = Some(data),
                    None => whole.extend_from_slice(&data),
                    Some(before) => {
                        whole.reserve((announced as usize).max(before.len() + data.len()));
                        whole.extend_from_slice(&before);
                        whole.extend_from_slice(&data);
                    }
                }
            }
            return Ok(first.unwrap_or_else(|| whole.freeze()));
        }
        Err(RouterError::BodyTooLarge { limit_mib })
    };
    let read = tokio::time::timeout(patience, read).await;
    let read = read.unwrap_or(Err(RouterError::BodyTooSlow { seconds: patience.as_secs() }));
    if matches!(read, Err(RouterError::BodyTooLarge { .. })) {
        read_away(&mut body, READ_AWAY, READ_AWAY_FOR).await;
    }
    read
}

/// A body nobody wants: read away as far as it takes for its sender to read the answer. Whoever waits to be asked for it
/// is not asked.
async fn turn_away(request: Request<Incoming>, most: usize, patience: Duration) {
    if !request.headers().contains_key(EXPECT) {
        read_away(&mut request.into_body(), most, patience).await;
    }
}

async fn read_away(body: &mut Incoming, most: usize, patience: Duration) {
    let away = async {
        let mut left = most;
        while left > 0
            && let Some(Ok(frame)) = body.frame().await
        {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        }
    };
    let _ = tokio::time::timeout(patience, away).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_decoded() {
        assert_eq!(decoded("org%2Fname"), "org/name");
        assert_eq!(decoded("a%2"), "a%2");
        assert_eq!(decoded("%zz%C3%A9"), "%zz\u{e9}");
        assert_eq!(decoded("%+1"), "%+1", "a sign is no digit");
    }
}
