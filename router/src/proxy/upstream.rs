//! Connections to workers, and answers as they come over them.
//!
//! An answer is read off its connection by whoever passes it on, in his own task: a chunk wakes one task and not two, and
//! an answer that is dropped takes its connection along, which the engine notices at once. Whole answers leave theirs
//! behind for the next request.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::{HeaderMap, Method, Request, Response, Version};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kvlane_engine_adapters::http_client::chain;
use kvlane_engine_adapters::tls::{ClientTls, Connector, Protocol, Stream};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::io::{poll_read_buf, poll_write_buf};

use super::http1::{Framing, Head, Http1Error, take_head, write_head};
use crate::config::Proxy as ProxySettings;
use crate::discovery::Worker;
use crate::error::Failure;

const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 64 << 20;
/// Read at a time, and about as long a request's head is.
const READ: usize = 8 << 10;
const HEAD: usize = 1 << 10;
/// A connection that was closed while idle says so at once. What fails later had begun to be answered.
const STALE: Duration = Duration::from_millis(250);

#[derive(Clone, Debug)]
pub struct Upstreams {
    http1: Connector,
    http2: Client<Connector, Full<Bytes>>,
}

/// A connection that carries one request at a time, and what was read off it.
#[derive(Debug)]
struct Wire {
    stream: Stream,
    buffer: BytesMut,
}

impl Wire {
    /// Whether another request can be sent: it is open, and the other side has said nothing unasked.
    fn is_free(&mut self) -> bool {
        let silent = match &mut self.stream {
            Stream::Plain(stream) => {
                stream.try_read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
            }
            // What is there may be TLS' own business, so it has to be looked into.
            Stream::Tls(_) => self.read_what_is_there().is_pending(),
        };
        silent && self.buffer.is_empty()
    }

    /// Reads without waiting.
    fn read_what_is_there(&mut self) -> Poll<std::io::Result<usize>> {
        let Self { stream, buffer } = self;
        buffer.reserve(READ);
        match stream {
            Stream::Plain(stream) => match stream.try_read_buf(buffer) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Poll::Pending,
                read => Poll::Ready(read),
            },
            Stream::Tls(stream) => {
                let mut nobody = Context::from_waker(Waker::noop());
                poll_read_buf(Pin::new(&mut **stream), &mut nobody, buffer)
            }
        }
    }

    /// Sends a request and reads the answer's head.
    async fn ask(&mut self, head: BytesMut, body: &Bytes) -> Result<Head, Http1Error> {
        let Self { stream, buffer } = self;
        match stream {
            Stream::Plain(stream) => Self::ask_plain(stream, buffer, head, body).await,
            // In a box of its own, or every plain request would have room for it.
            Stream::Tls(_) => Box::pin(Self::ask_secured(stream, buffer, head, body)).await,
        }
    }

    async fn ask_plain(
        stream: &mut TcpStream,
        buffer: &mut BytesMut,
        head: BytesMut,
        body: &Bytes,
    ) -> Result<Head, Http1Error> {
        let (mut reader, mut writer) = stream.split();
        let mut unsent = head.chain(body.clone());
        loop {
            // Who refuses a request may say so before all of it is there, and never read the rest.
            let written = if unsent.has_remaining() {
                tokio::select! {
                    biased;
                    written = writer.write_all_buf(&mut unsent) => Some(written),
                    _ = reader.readable() => None,
                }
            } else {
                Some(Ok(()))
            };
            // And may close then, so that an answer may be there although nothing can be sent.
            buffer.reserve(READ);
            let read = match written {
                Some(_) => reader.read_buf(buffer).await,
                None => reader.try_read_buf(buffer),
            };
            match read {
                // There was nothing after all, and the rest still has to be sent.
                Err(error) if written.is_none() && error.kind() == std::io::ErrorKind::WouldBlock => continue,
                Ok(0) | Err(_) if buffer.is_empty() => {
                    written.unwrap_or(Ok(()))?;
                    return Err(Http1Error::Unanswered);
                }
                Ok(0) => return Err(Http1Error::Truncated),
                Ok(_) => {}
                Err(error) => return Err(Http1Error::Broken(error)),
            }
            if let Some(mut head) = take_head(buffer)? {
                head.stays &= !unsent.has_remaining();
                return Ok(head);
            }
        }
    }

    /// The same over TLS, where reading may have to write and writing to read.
    async fn ask_secured(
        stream: &mut Stream,
        buffer: &mut BytesMut,
        head: BytesMut,
        body: &Bytes,
    ) -> Result<Head, Http1Error> {
        let mut unsent = head.chain(body.clone());
        let mut written = Ok(());
        loop {
            buffer.reserve(READ);
            let asking = std::future::poll_fn(|cx| {
                while unsent.has_remaining() && written.is_ok() {
                    match poll_write_buf(Pin::new(&mut *stream), cx, &mut unsent) {
                        Poll::Ready(Ok(0)) => written = Err(std::io::ErrorKind::WriteZero.into()),
                        Poll::Ready(Ok(_)) => {}
                        // An answer may be there although nothing can be sent.
                        Poll::Ready(Err(error)) => written = Err(error),
                        Poll::Pending => break,
                    }
                }
                if written.is_ok() {
                    // What was taken may still have to be sent.
                    if let Poll::Ready(Err(error)) = Pin::new(&mut *stream).poll_flush(cx) {
                        written = Err(error);
                    }
                }
                poll_read_buf(Pin::new(&mut *stream), cx, buffer)
            });
            match asking.await {
                Ok(0) | Err(_) if buffer.is_empty() => {
                    written?;
                    return Err(Http1Error::Unanswered);
                }
                Ok(0) => return Err(Http1Error::Truncated),
                Ok(_) => {}
                Err(error) => return Err(Http1Error::Broken(error)),
            }
            if let Some(mut head) = take_head(buffer)? {
                head.stays &= !unsent.has_remaining();
                return Ok(head);
            }
        }
    }
}

/// A worker's idle connections, the latest last.
#[derive(Debug)]
pub struct Connections {
    idle: Mutex<VecDeque<(Wire, Instant)>>,
    most: usize,
    kept: Duration,
}

impl Connections {
    pub fn new(most: usize, kept: Duration) -> Self {
        Self { idle: Mutex::default(), most, kept }
    }

    /// How many wait.
    pub fn idle(&self) -> usize {
        self.idle.lock().len()
    }

    fn take(&self) -> Option<Wire> {
        loop {
            let (mut wire, since) = self.idle.lock().pop_back()?;
            if since.elapsed() < self.kept && wire.is_free() {
                return Some(wire);
            }
        }
    }

    fn put(&self, wire: Wire) {
        let mut idle = self.idle.lock();
        idle.push_back((wire, Instant::now()));
        // The oldest goes; it is closed when nobody has to wait for that.
        let closed = (idle.len() > self.most).then(|| idle.pop_front());
        drop(idle);
        drop(closed);
    }

    /// Closes those that were idle for too long.
    pub fn prune(&self) {
        let mut idle = self.idle.lock();
        let old = idle.iter().take_while(|(_, since)| since.elapsed() >= self.kept).count();
        let closed: Vec<_> = idle.drain(..old).collect();
        drop(idle);
        drop(closed);
    }

    /// Closes all of them.
    pub fn close(&self) {
        let closed = std::mem::take(&mut *self.idle.lock());
        drop(closed);
    }
}

impl Upstreams {
    pub fn new(settings: &ProxySettings, tls: &Arc<ClientTls>) -> Self {
        let patience = Duration::from_millis(settings.connect_timeout_ms);
        let mut connector = HttpConnector::new();
        // Small writes must not wait for each other's acknowledgements.
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(patience));
        connector.set_keepalive(Some(Duration::from_secs(30)));
        let speaking = |protocol| Connector::new(connector.clone(), tls.clone(), protocol, patience);
        // All streams share a connection: one that nobody reads must not use up what the others need.
        let http2 = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_max_idle_per_host(settings.max_idle_per_worker)
            .pool_idle_timeout(Duration::from_millis(settings.idle_connection_ms))
            .http2_only(true)
            .http2_initial_stream_window_size(Some(STREAM_WINDOW))
            .http2_initial_connection_window_size(Some(CONNECTION_WINDOW))
            .http2_keep_alive_interval(Some(Duration::from_secs(10)))
            .http2_keep_alive_timeout(Duration::from_secs(5))
            .build(speaking(Protocol::Http2));
        Self { http1: speaking(Protocol::Http1), http2 }
    }

    /// Sends a request and waits for the answer's headers.
    pub async fn send(
        &self,
        worker: &Arc<Worker>,
        method: Method,
        path: &'static str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Response<AnswerBody>, Failure> {
        if worker.spec.http2 {
            let mut request = Request::new(Full::new(body));
            *request.method_mut() = method;
            *request.uri_mut() = worker.uri(path).ok_or(Failure::Connect)?;
            *request.headers_mut() = headers.clone();
            *request.version_mut() = Version::HTTP_2;
            let answered = self.http2.request(request).await;
            return answered.map(|answer| answer.map(AnswerBody::Shared)).map_err(|error| {
                failed(worker, &error);
                if error.is_connect() { Failure::Connect } else { Failure::Closed }
            });
        }
        let path = worker.path(path).ok_or(Failure::Connect)?;
        // Whether one that was kept is used; after it failed, a new one is.
        let mut kept = true;
        loop {
            let idle = if kept { worker.connections.take() } else { None };
            kept = idle.is_some();
            let mut wire = match idle {
                Some(wire) => wire,
                None => self.connect(worker).await?,
            };
            let mut head = BytesMut::with_capacity(HEAD);
            write_head(&mut head, &method, &path, &worker.host, headers, body.len());
            let asked = Instant::now();
            match wire.ask(head, &body).await {
                Ok(head) => {
                    let (framing, stays) = (head.framing, head.stays);
                    let own = Own { wire: Some(wire), framing, stays, worker: worker.clone() };
                    return Ok(Response::from_parts(head.parts, AnswerBody::Own(own)));
                }
                // One that was kept may just have been closed by the other side, which says nothing of a new one.
                Err(Http1Error::Unanswered | Http1Error::Io(_)) if kept && asked.elapsed() < STALE => {
                    kept = false;
                }
                Err(error) => {
                    failed(worker, &error);
                    return Err(Failure::Closed);
                }
            }
        }
    }

    async fn connect(&self, worker: &Worker) -> Result<Wire, Failure> {
        let uri = worker.uri("/").ok_or(Failure::Connect)?;
        let stream = self.http1.clone().connect(uri).await.map_err(|error| {
            failed(worker, &error);
            Failure::Connect
        })?;
        Ok(Wire { stream, buffer: BytesMut::new() })
    }
}

/// A worker's answer.
#[derive(Debug)]
pub enum AnswerBody {
    /// Over a connection of its own.
    Own(Own),
    /// Over one that others use as well.
    Shared(Incoming),
}

/// An answer with a connection of its own.
#[derive(Debug)]
pub struct Own {
    /// Taken when it is given back.
    wire: Option<Wire>,
    framing: Framing,
    stays: bool,
    worker: Arc<Worker>,
}

/// An answer that broke off.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error(transparent)]
    Own(#[from] Http1Error),
    #[error(transparent)]
    Shared(#[from] hyper::Error),
}

impl Own {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Http1Error>>> {
        let Some(Wire { stream, buffer }) = &mut self.wire else { return Poll::Ready(None) };
        loop {
            // Mostly there is nothing yet.
            if !buffer.is_empty() {
                match self.framing.take(buffer) {
                    Ok(data) if !data.is_empty() => return Poll::Ready(Some(Ok(data))),
                    Ok(_) => {}
                    Err(error) => return Poll::Ready(Some(Err(error))),
                }
            }
            if self.framing.is_over() {
                return Poll::Ready(None);
            }
            buffer.reserve(READ);
            match ready!(poll_read_buf(Pin::new(&mut *stream), cx, buffer)) {
                Ok(0) if self.framing.ends_with_connection() => return Poll::Ready(None),
                Ok(0) => return Poll::Ready(Some(Err(Http1Error::Truncated))),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = AnswerError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnswerError>>> {
        match self.get_mut() {
            Self::Own(own) => own
                .poll_data(cx)
                .map(|data| data.map(|data| data.map(Frame::data).map_err(AnswerError::from))),
            Self::Shared(incoming) => Pin::new(incoming)
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.map_err(AnswerError::from))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(own) => own.framing.is_over(),
            Self::Shared(incoming) => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(Own { framing: Framing::Length(left), .. }) => SizeHint::with_exact(*left),
            Self::Own(_) => SizeHint::default(),
            Self::Shared(incoming) => incoming.size_hint(),
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let Some(mut wire) = self.wire.take().filter(|_| self.stays && !self.worker.gone()) else { return };
        // What nobody wanted to read, such as why a request was refused, is often there already.
        if !self.framing.is_over() && !matches!(self.framing, Framing::UntilClosed) {
            let _ = wire.read_what_is_there();
            let _ = self.framing.take(&mut wire.buffer);
        }
        if self.framing.is_over() && wire.is_free() {
            self.worker.connections.put(wire);
        }
    }
}

fn failed(worker: &Worker, error: &dyn std::error::Error) {
    tracing::debug!(worker = worker.name, error = %chain(error), "request failed");
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::BodyExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::config::{Config, WorkerSpec};
    use crate::metrics::Metrics;
    use crate::proxy::breaker::{Breaker, BreakerConfig};

    const FINE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    const FULL: &str = "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 4\r\n\r\nfull";

    /// A worker whose every connection answers what `script` says to the nth request on it, reading no more than heads;
    /// nothing closes it. How many connections there were.
    async fn worker(script: fn(usize, usize) -> Option<&'static str>) -> (Arc<Worker>, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let opened = Arc::new(AtomicUsize::new(0));
        let counted = opened.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let connection = counted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    for n in 0.. {
                        let mut seen = Vec::new();
                        while !seen.ends_with(b"\r\n\r\n") {
                            match stream.read_u8().await {
                                Ok(byte) => seen.push(byte),
                                Err(_) => return,
                            }
                        }
                        match script(connection, n) {
                            Some(answer) => stream.write_all(answer.as_bytes()).await.unwrap(),
                            None => return,
                        }
                    }
                });
            }
        });
        let breaker =
            Breaker::new(BreakerConfig { failures: 3, share: 0.5, open_for: Duration::from_secs(1) });
        let connections = Connections::new(2, Duration::from_secs(60));
        let metrics = Metrics::register().unwrap();
        (Arc::new(Worker::new(WorkerSpec::at(url), None, breaker, connections, &metrics).unwrap()), opened)
    }

    fn upstreams() -> Upstreams {
        Upstreams::new(&Config::defaults().unwrap().proxy, &ClientTls::system())
    }

    async fn send(worker: &Arc<Worker>, body: Bytes) -> Result<Response<AnswerBody>, Failure> {
        let (upstreams, headers) = (upstreams(), HeaderMap::new());
        let sent = upstreams.send(worker, Method::POST, "/v1/x", &headers, body);
        tokio::time::timeout(Duration::from_secs(20), sent).await.expect("an answer in time")
    }

    /// Sends and reads it all.
    async fn whole(worker: &Arc<Worker>) -> String {
        let body = send(worker, Bytes::new()).await.unwrap().into_body();
        String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn connections_are_used_again_unless_they_were_closed() {
        // The first is closed behind its third answer, which nobody is told.
        let (worker, opened) = worker(|connection, n| (connection > 0 || n < 3).then_some(FINE)).await;
        for _ in 0..3 {
            assert_eq!(whole(&worker).await, "ok");
        }
        assert_eq!(opened.load(Ordering::SeqCst), 1);
        // What finds it closed is sent again over another.
        assert_eq!(whole(&worker).await, "ok");
        assert_eq!(opened.load(Ordering::SeqCst), 2);
        worker.connections.close();
        assert_eq!((whole(&worker).await.as_str(), opened.load(Ordering::SeqCst)), ("ok", 3));
    }

    #[tokio::test]
    async fn a_new_connection_that_fails_has_failed() {
        let (worker, opened) = worker(|_, _| None).await;
        assert_eq!(send(&worker, Bytes::new()).await.unwrap_err(), Failure::Closed);
        assert_eq!(opened.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_refusal_is_heard_while_the_request_is_being_sent() {
        let long = Bytes::from(vec![b'x'; 16 << 20]);
        let (worker, opened) = worker(|_, n| (n == 0).then_some(FULL)).await;
        let answer = send(&worker, long).await.unwrap();
        assert_eq!(answer.status().as_u16(), 429);
        drop(answer);
        // What is left of the request must not be taken for the next one.
        assert_eq!(send(&worker, Bytes::new()).await.unwrap().status().as_u16(), 429);
        assert_eq!(opened.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn an_answer_nobody_reads_leaves_its_connection_if_it_is_there() {
        let (worker, opened) = worker(|_, _| Some(FULL)).await;
        for _ in 0..3 {
            drop(send(&worker, Bytes::new()).await.unwrap());
        }
        assert_eq!(opened.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn an_answer_left_in_the_middle_closes_its_connection() {
        const HALF: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n";
        let (worker, opened) = worker(|_, _| Some(HALF)).await;
        for _ in 0..2 {
            let mut body = send(&worker, Bytes::new()).await.unwrap().into_body();
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "he");
        }
        assert_eq!(opened.load(Ordering::SeqCst), 2);
    }
}
