//! One client with one connection that is kept, as a conversation's client keeps it, and what becomes of its requests.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::client::events::{Event, Events};

/// How a request ended, as far as its client can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    Whole,
    /// No answer, and a word why not.
    Refused {
        status: u16,
        code: String,
    },
    /// No answer, and no word.
    Unanswered(String),
    /// Part of an answer, and a word why there is no more.
    Told(String),
    /// Part of an answer, and no word.
    Silent(String),
}

impl Ended {
    /// Whether OpenAI's own clients would send it again by themselves: the connection failed before an answer, or the
    /// answer was one of these.
    pub fn tried_again(&self) -> bool {
        match self {
            Self::Refused { status, .. } => matches!(status, 408 | 409 | 429 | 500..),
            Self::Unanswered(_) => true,
            Self::Whole | Self::Told(_) | Self::Silent(_) => false,
        }
    }

    /// In a word, for tables.
    pub fn why(&self) -> String {
        match self {
            Self::Whole => String::new(),
            Self::Refused { status, code } => format!("{status} {code}"),
            Self::Unanswered(why) | Self::Told(why) | Self::Silent(why) => why.clone(),
        }
    }
}

/// A request that is over.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub ended: Ended,
    pub text: String,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub began: Instant,
    pub over: Instant,
    /// Where its connection came from: the balancer knows where it went.
    pub from: Option<SocketAddr>,
}

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    from: SocketAddr,
    _task: AbortOnDropHandle<()>,
}

/// See the [module](self).
pub struct Caller {
    to: SocketAddr,
    connection: Option<Connection>,
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Caller").field("to", &self.to).finish_non_exhaustive()
    }
}

const CONNECT: Duration = Duration::from_secs(5);
/// How long a request may take in all.
const WHOLE: Duration = Duration::from_secs(60);
/// A longer refusal is not read.
const MOST_REFUSAL: usize = 1 << 16;
/// An answer that is longer is none that was asked for.
const MOST_TEXT: usize = 1 << 20;
/// Kept connections that turn out to be closed before anything was sent over them, in a row.
const MOST_CLOSED: usize = 3;

impl Caller {
    pub fn new(to: SocketAddr) -> Self {
        Self { to, connection: None }
    }

    /// Closes its connection; the next request opens another.
    pub fn hang_up(&mut self) {
        self.connection = None;
    }

    /// Asks for a streamed chat and reads all of it.
    pub async fn ask(&mut self, body: Bytes) -> Attempt {
        let now = Instant::now();
        let mut attempt = Attempt {
            ended: Ended::Unanswered("no answer in time".to_owned()),
            text: String::new(),
            prompt_tokens: 0,
            cached_tokens: 0,
            began: now,
            over: now,
            from: None,
        };
        let mut begun = false;
        let asked = tokio::time::timeout(WHOLE, self.read(body, &mut attempt, &mut begun)).await;
        attempt.ended = match asked {
            Ok(ended) => ended,
            Err(_) if begun => Ended::Silent("not over in time".to_owned()),
            Err(_) => attempt.ended,
        };
        attempt.over = Instant::now();
        // What a broken answer left on its connection is nobody's.
        if attempt.ended != Ended::Whole {
            self.hang_up();
        }
        attempt
    }

    async fn read(&mut self, body: Bytes, attempt: &mut Attempt, begun: &mut bool) -> Ended {
        let response = match self.send(body, attempt).await {
            Ok(response) => response,
            Err(why) => return Ended::Unanswered(why),
        };
        let status = response.status();
        if !status.is_success() {
            let body = Limited::new(response.into_body(), MOST_REFUSAL).collect().await;
            let said = body.map(|body| body.to_bytes()).unwrap_or_default();
            let said: Value = serde_json::from_slice(&said).unwrap_or_default();
            let code = said["error"]["code"].as_str().unwrap_or_default().to_owned();
            return Ended::Refused { status: status.as_u16(), code };
        }
        *begun = true;
        stream(response, attempt).await
    }

    /// Over the connection there is, or a new one. Nothing is counted when a kept one was closed and nothing was sent over
    /// it yet: every client looks before it writes.
    async fn send(&mut self, body: Bytes, attempt: &mut Attempt) -> Result<Response<Incoming>, String> {
        for _ in 0..MOST_CLOSED {
            let mut connection = match self.connection.take() {
                Some(kept) => kept,
                None => self.connect().await?,
            };
            if connection.sender.ready().await.is_err() {
                continue;
            }
            attempt.from = Some(connection.from);
            let request = Request::post("/v1/chat/completions")
                .header(HOST, self.to.to_string())
                .header(CONTENT_TYPE, "application/json")
                .body(Full::new(body.clone()))
                .map_err(|error| error.to_string())?;
            match connection.sender.send_request(request).await {
                Ok(response) => {
                    self.connection = Some(connection);
                    return Ok(response);
                }
                Err(error) if error.is_canceled() => {}
                Err(_) => return Err("connection broke".to_owned()),
            }
        }
        Err("connections were closed".to_owned())
    }

    async fn connect(&self) -> Result<Connection, String> {
        let stream = tokio::time::timeout(CONNECT, TcpStream::connect(self.to)).await;
        let stream = stream.map_err(|_| "no connection in time")?.map_err(|_| "no connection")?;
        let from = stream.local_addr().map_err(|error| error.to_string())?;
        let _ = stream.set_nodelay(true);
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        let task = tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(Connection { sender, from, _task: AbortOnDropHandle::new(task) })
    }
}

/// Reads a stream to its very end, so that its connection can be used again.
async fn stream(response: Response<Incoming>, attempt: &mut Attempt) -> Ended {
    let mut body = response.into_body();
    let (mut events, mut done) = (Events::default(), false);
    loop {
        let frame = match body.frame().await {
            Some(Ok(frame)) => frame,
            // A broken chunked body after [DONE] has lost nothing.
            None | Some(Err(_)) if done => return Ended::Whole,
            None => return Ended::Silent("ended before [DONE]".to_owned()),
            Some(Err(_)) => return Ended::Silent("connection broke".to_owned()),
        };
        let Ok(data) = frame.into_data() else { continue };
        let read = match events.read(&data) {
            Ok(read) => read,
            Err(_) => return Ended::Silent("an event that is none".to_owned()),
        };
        for event in read {
            match event {
                Event::Done => done = true,
                Event::Error { message, code } => return Ended::Told(code.unwrap_or(message)),
                Event::Chunk { text, usage, .. } => {
                    attempt.text.push_str(&text);
                    if let Some(usage) = usage {
                        attempt.prompt_tokens = usage.prompt_tokens.unwrap_or(0);
                        attempt.cached_tokens = usage.cached_tokens().unwrap_or(0);
                    }
                }
            }
        }
        if attempt.text.len() > MOST_TEXT {
            return Ended::Silent("it does not end".to_owned());
        }
    }
}
