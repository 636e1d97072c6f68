//! What was wrong with a command, in a sentence.

use std::fmt::{self, Display};

use axum::Json;
use axum::body::to_bytes;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::json;

#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    message: String,
}

impl Problem {
    fn of(status: StatusCode, message: impl Display) -> Self {
        // With its causes, where it has some.
        Self { status, message: format!("{message:#}") }
    }

    /// It cannot be done as it was said.
    pub(super) fn wrong(message: impl Display) -> Self {
        Self::of(StatusCode::BAD_REQUEST, message)
    }

    /// It cannot be done now.
    pub(super) fn not_now(message: impl Display) -> Self {
        Self::of(StatusCode::CONFLICT, message)
    }

    /// It can never be done here.
    pub(super) fn not_here(message: impl Display) -> Self {
        Self::of(StatusCode::FORBIDDEN, message)
    }

    pub(super) fn not_found(message: impl Display) -> Self {
        Self::of(StatusCode::NOT_FOUND, message)
    }

    /// Too many want it.
    pub(super) fn too_many(message: impl Display) -> Self {
        Self::of(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    /// Somebody else was asked, and said no or nothing.
    pub(super) fn elsewhere(message: impl Display) -> Self {
        Self::of(StatusCode::BAD_GATEWAY, message)
    }

    /// Something here broke.
    pub(super) fn broken(message: impl Display) -> Self {
        Self::of(StatusCode::INTERNAL_SERVER_ERROR, message)
    }
}

impl Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.status, Json(json!({"error": {"message": self.message}}))).into_response()
    }
}

/// Longer ones are not sentences.
const MOST_BYTES: usize = 4096;

/// Refusals that come from below in words of their own, put into our form.
pub(super) async fn in_form(response: Response) -> Response {
    let status = response.status();
    let is_json = |value: &axum::http::HeaderValue| value.as_bytes().starts_with(b"application/json");
    let in_form = response.headers().get(CONTENT_TYPE).is_some_and(is_json);
    if !(status.is_client_error() || status.is_server_error()) || in_form {
        return response;
    }
    let body = to_bytes(response.into_body(), MOST_BYTES).await.unwrap_or_default();
    let said = String::from_utf8_lossy(&body).trim().to_owned();
    let said = if said.is_empty() { status.canonical_reason().unwrap_or("no").to_lowercase() } else { said };
    // What is of the wrong form is a bad request, whoever found it.
    let status = if status == StatusCode::UNPROCESSABLE_ENTITY { StatusCode::BAD_REQUEST } else { status };
    Problem::of(status, said).into_response()
}
