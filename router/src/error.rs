//! What goes wrong, told twice: to the client in OpenAI's form, and to the log with causes and addresses.

use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use serde_json::json;

use crate::access::LimitKind;
use crate::scheduling::NoPlace;

/// Whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Client,
    Worker,
    Router,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum RouterError {
    #[error("{message}")]
    BadRequest { message: String, param: Option<String>, code: Option<&'static str> },
    #[error("the request's body has more than {limit_mib} MiB, expected {limit_mib} MiB or less")]
    BodyTooLarge { limit_mib: usize },
    #[error("the request's body did not arrive within {seconds} s")]
    BodyTooSlow { seconds: u64 },
    #[error("{message}")]
    Unauthorized { message: &'static str },
    #[error("{message}")]
    Forbidden { message: String },
    #[error("the key's limit of {most} {} is reached; try again in {} s", limit.setting(), seconds(*after))]
    OverLimit { limit: LimitKind, most: u32, after: Duration },
    #[error("no model `{model}` is served here; served now: {served}")]
    UnknownModel { model: String, served: String },
    #[error("there is nothing at {method} {path}")]
    UnknownPath { method: String, path: String },
    #[error("{message}")]
    NotFound { message: String },
    #[error("{path} takes {allowed}, not {method}")]
    MethodNotAllowed { method: String, path: String, allowed: &'static str },
    #[error("no worker for model `{model}` is ready: {why}; try again")]
    NoWorker { model: String, why: String },
    #[error("every worker for model `{model}` has as many requests as it may, and {why}; try again")]
    Full { model: String, why: NoPlace },
    #[error("the router is busy: {what}; try again")]
    Busy { what: &'static str },
    #[error("the router is shutting down; try another one")]
    Draining,
    /// No worker gave an answer, and nothing was sent to the client yet.
    #[error("{tried} of the workers for model `{model}` gave no answer: {last}")]
    NoAnswer { model: String, tried: usize, last: Failure },
    /// An answer broke off.
    #[error("the worker's answer broke off: {0}")]
    BrokenOff(Failure),
    /// The same, where others were to go on with it.
    #[error("the worker's answer broke off: {failure}; it was not continued by another worker because {why}")]
    NotContinued { failure: Failure, why: &'static str },
    #[error("something went wrong in the router")]
    Internal,
}

/// How a worker failed, without addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("connecting to the worker failed")]
    Connect,
    #[error("the worker closed the connection")]
    Closed,
    #[error("the worker did not answer in time")]
    Timeout,
    #[error("the worker answered with status {0}")]
    Status(u16),
    #[error("the stream ended before the answer did")]
    Incomplete,
    #[error("the router is shutting down")]
    ShuttingDown,
}

impl Failure {
    pub const NAMES: [&str; 6] = ["connect", "closed", "timeout", "status", "incomplete", "shutting_down"];

    /// The word in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Closed => "closed",
            Self::Timeout => "timeout",
            Self::Status(_) => "status",
            Self::Incomplete => "incomplete",
            Self::ShuttingDown => "shutting_down",
        }
    }
}

/// Whole seconds, so that nobody comes back too early.
pub fn seconds(after: Duration) -> u64 {
    (after.as_nanos().div_ceil(1_000_000_000) as u64).max(1)
}

impl RouterError {
    pub fn bad_request(param: impl Into<Option<String>>, message: impl Into<String>) -> Self {
        Self::BadRequest { message: message.into(), param: param.into(), code: None }
    }

    pub fn fault(&self) -> Fault {
        match self {
            Self::NoAnswer { .. }
            | Self::BrokenOff(_)
            | Self::NotContinued { .. }
            | Self::NoWorker { .. } => Fault::Worker,
            Self::Full { .. } | Self::Busy { .. } | Self::Draining | Self::Internal => Fault::Router,
            _ => Fault::Client,
        }
    }

    /// Whether the same request may do better later.
    pub fn retryable(&self) -> bool {
        match self {
            Self::OverLimit { .. } => true,
            Self::Internal => false,
            _ => self.fault() != Fault::Client,
        }
    }

    pub fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest { .. } => StatusCode::BAD_REQUEST,
            Self::Unauthorized { .. } => StatusCode::UNAUTHORIZED,
            Self::Forbidden { .. } => StatusCode::FORBIDDEN,
            Self::OverLimit { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTooSlow { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::UnknownModel { .. } | Self::UnknownPath { .. } | Self::NotFound { .. } => {
                StatusCode::NOT_FOUND
            }
            Self::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::NoWorker { .. } | Self::Full { .. } | Self::Busy { .. } | Self::Draining => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::NoAnswer { last: Failure::Timeout, .. } => StatusCode::GATEWAY_TIMEOUT,
            // Every worker that was asked is full: the client may try again, and should wait.
            Self::NoAnswer { last: Failure::Status(429 | 503), .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::NoAnswer { .. } | Self::BrokenOff(_) | Self::NotContinued { .. } => StatusCode::BAD_GATEWAY,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Unauthorized { .. } => "authentication_error",
            Self::Forbidden { .. } => "permission_error",
            Self::OverLimit { .. } => "rate_limit_error",
            Self::UnknownPath { .. } | Self::NotFound { .. } => "not_found_error",
            Self::NoWorker { .. }
            | Self::Full { .. }
            | Self::Busy { .. }
            | Self::Draining
            | Self::NoAnswer { last: Failure::Status(429 | 503), .. } => "overloaded_error",
            _ if self.fault() == Fault::Client => "invalid_request_error",
            _ => "server_error",
        }
    }

    pub fn code(&self) -> Option<&'static str> {
        match self {
            Self::BadRequest { code, .. } => *code,
            Self::Unauthorized { .. } => Some("invalid_api_key"),
            Self::Forbidden { .. } => Some("forbidden"),
            Self::OverLimit { .. } => Some("rate_limit_exceeded"),
            Self::BodyTooLarge { .. } => Some("body_too_large"),
            Self::BodyTooSlow { .. } => Some("body_too_slow"),
            Self::UnknownModel { .. } => Some("model_not_found"),
            Self::UnknownPath { .. } | Self::NotFound { .. } => Some("not_found"),
            Self::MethodNotAllowed { .. } => Some("method_not_allowed"),
            Self::NoWorker { .. } => Some("no_worker_ready"),
            Self::Full { .. } | Self::Busy { .. } => Some("overloaded"),
            Self::Draining => Some("shutting_down"),
            Self::NoAnswer { .. } => Some("worker_failed"),
            Self::BrokenOff(_) | Self::NotContinued { .. } => Some("answer_broke_off"),
            Self::Internal => Some("internal_error"),
        }
    }

    fn param(&self) -> Option<&str> {
        match self {
            Self::BadRequest { param, .. } => param.as_deref(),
            Self::UnknownModel { .. } => Some("model"),
            _ => None,
        }
    }

    /// `{"error": {...}}`.
    pub fn body(&self) -> Bytes {
        let error = json!({
            "message": self.to_string(),
            "type": self.kind(),
            "param": self.param(),
            "code": self.code(),
        });
        Bytes::from(json!({ "error": error }).to_string())
    }

    /// The word for `error_type` in metrics, Dynamo's where it has one.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Unauthorized { .. } | Self::Forbidden { .. } => "unauthorized",
            Self::OverLimit { .. } => "rate_limited",
            Self::UnknownModel { .. } | Self::UnknownPath { .. } => "not_found",
            Self::NoWorker { .. }
            | Self::Busy { .. }
            | Self::Full { .. }
            | Self::Draining
            | Self::NoAnswer { last: Failure::Status(429 | 503), .. } => "overload",
            Self::NoAnswer { last: Failure::Timeout, .. }
            | Self::BrokenOff(Failure::Timeout)
            | Self::NotContinued { failure: Failure::Timeout, .. } => "timeout",
            _ if self.fault() == Fault::Client => "validation",
            _ => "internal",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_learns_what_was_wrong_and_no_more() {
        let error = RouterError::UnknownModel { model: "a".into(), served: "`b`".into() };
        let body: serde_json::Value = serde_json::from_slice(&error.body()).unwrap();
        assert_eq!(
            body,
            json!({"error": {
                "message": "no model `a` is served here; served now: `b`",
                "type": "invalid_request_error", "param": "model", "code": "model_not_found",
            }})
        );
        assert_eq!((error.status().as_u16(), error.retryable(), error.class()), (404, false, "not_found"));
        let late = RouterError::NoAnswer { model: "a".into(), tried: 2, last: Failure::Timeout };
        assert_eq!((late.status().as_u16(), late.retryable(), late.class()), (504, true, "timeout"));
        assert_eq!((late.fault(), Failure::Timeout.name()), (Fault::Worker, "timeout"));
    }
}
