//! Responses and errors in the shapes vLLM's server gives them.

use std::io;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use serde_json::json;

pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

pub(super) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

pub(super) fn respond(status: StatusCode, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    match serde_json::to_vec(value) {
        Ok(bytes) => respond(status, "application/json", full(bytes)),
        Err(error) => respond(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", full(error.to_string())),
    }
}

pub(super) fn ok(value: &impl Serialize) -> Response<Body> {
    json(StatusCode::OK, value)
}

/// What the framework under vLLM answers for a path or method it does not know.
pub(super) fn detail(status: StatusCode, detail: &str) -> Response<Body> {
    json(status, &json!({"detail": detail}))
}

/// A request that is refused.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
}

impl Refusal {
    pub(super) fn bad_request(param: Option<&str>, message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            kind: "BadRequestError",
            message: message.into(),
            param: param.map(str::to_owned),
        }
    }

    /// A body that is not what it should be; `at` is where, from the body down.
    pub(super) fn invalid_body(at: &str, kind: &str, message: &str) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            kind: "Bad Request",
            message: format!(
                "1 validation error:\n  {{'type': '{kind}', 'loc': '{at}', 'msg': '{message}'}}"
            ),
            param: Some(at.to_owned()),
        }
    }

    pub(super) fn no_such_model(model: &str, served: &[&str]) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            kind: "NotFoundError",
            message: format!("The model `{model}` does not exist. Valid aliases: {}.", served.join(", ")),
            param: Some("model".to_owned()),
        }
    }

    pub(super) fn too_large(limit: usize) -> Self {
        Self {
            status: StatusCode::PAYLOAD_TOO_LARGE,
            kind: "BadRequestError",
            message: format!("request body is larger than {limit} bytes"),
            param: None,
        }
    }

    /// An engine that fails on purpose.
    pub(super) fn switched_on(status: StatusCode) -> Self {
        Self { status, kind: "InternalServerError", message: "a fault switch is on".to_owned(), param: None }
    }

    pub(super) fn respond(&self) -> Response<Body> {
        let body = json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.status.as_u16(),
        }});
        json(self.status, &body)
    }
}
