//! What was wrong with a command, in a sentence.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    message: String,
}

impl Problem {
    /// It cannot be done as it was said.
    pub(super) fn wrong(error: &anyhow::Error) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: format!("{error:#}") }
    }

    /// It cannot be done now.
    pub(super) fn not_now(message: impl Into<String>) -> Self {
        Self { status: StatusCode::CONFLICT, message: message.into() }
    }

    /// It can never be done here.
    pub(super) fn not_here(message: impl Into<String>) -> Self {
        Self { status: StatusCode::FORBIDDEN, message: message.into() }
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, message: message.into() }
    }

    /// Somebody else was asked, and said no or nothing.
    pub(super) fn elsewhere(error: &anyhow::Error) -> Self {
        Self { status: StatusCode::BAD_GATEWAY, message: format!("{error:#}") }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.status, Json(json!({"error": {"message": self.message}}))).into_response()
    }
}
