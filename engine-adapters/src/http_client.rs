//! Small questions to engines over HTTP: one answer, bounded in size and time.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Method, Request};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::tls::{ClientTls, Connector, Protocol};

#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("{url}: {error}")]
    Failed { url: String, error: String },
    /// One side does not accept the other's certificate, or they speak different TLS.
    #[error("{url}: {error}")]
    Untrusted { url: String, error: String },
    #[error("{url}: no answer within {patience:?}")]
    Late { url: String, patience: Duration },
    #[error("{url}: status {status}")]
    Status { url: String, status: u16 },
}

/// Keeps connections open between questions. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HttpClient {
    client: Client<Connector, Full<Bytes>>,
    patience: Duration,
    max_bytes: usize,
    authorization: Option<HeaderValue>,
}

impl HttpClient {
    pub fn new(patience: Duration, max_bytes: usize, tls: Arc<ClientTls>) -> Self {
        let connector = Connector::new(HttpConnector::new(), tls, Protocol::Http1, patience);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Self { client, patience, max_bytes, authorization: None }
    }

    /// Shows this with every question, for engines that answer nobody else.
    #[must_use]
    pub fn bearing(self, authorization: Option<HeaderValue>) -> Self {
        Self { authorization, ..self }
    }

    pub async fn get(&self, url: &str) -> Result<Bytes, HttpError> {
        self.ask(Method::GET, url, Bytes::new()).await
    }

    pub async fn post(&self, url: &str) -> Result<Bytes, HttpError> {
        self.ask(Method::POST, url, Bytes::new()).await
    }

    /// Posts JSON.
    pub async fn post_json(&self, url: &str, body: Bytes) -> Result<Bytes, HttpError> {
        self.ask(Method::POST, url, body).await
    }

    async fn ask(&self, method: Method, url: &str, body: Bytes) -> Result<Bytes, HttpError> {
        let failed = |error: &dyn Error| {
            let (url, text) = (url.to_owned(), chain(error));
            match is_about_tls(error) {
                true => HttpError::Untrusted { url, error: text },
                false => HttpError::Failed { url, error: text },
            }
        };
        let mut request = Request::builder().method(method).uri(url);
        if !body.is_empty() {
            request = request.header(hyper::header::CONTENT_TYPE, "application/json");
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(Full::new(body)).map_err(|error| failed(&error))?;
        let answer = async {
            let response = self.client.request(request).await.map_err(|error| failed(&error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), self.max_bytes)
                .collect()
                .await
                .map_err(|error| failed(&*error))?;
            if status.is_success() {
                Ok(body.to_bytes())
            } else {
                Err(HttpError::Status { url: url.to_owned(), status: status.as_u16() })
            }
        };
        let late = |_| HttpError::Late { url: url.to_owned(), patience: self.patience };
        tokio::time::timeout(self.patience, answer).await.map_err(late)?
    }
}

/// An error with its causes.
pub fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| (**cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn is_about_tls(error: &dyn Error) -> bool {
    let is = |error: &(dyn Error + 'static)| {
        // What an I/O error wraps is not among its causes.
        let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        error.is::<rustls::Error>() || wrapped.is_some_and(|wrapped| wrapped.is::<rustls::Error>())
    };
    std::iter::successors(error.source(), |cause| (**cause).source()).any(is)
}
