//! A client that takes its time over a request's head is cut off; one that has nothing to ask may stay.
//!
//! HTTP's server has one timer for both, which is set to the longer patience. What tells them apart is the first byte:
//! from there on a head has to come within its own time. A head that comes in one piece costs two looks at a number.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Where one connection is, told by what is read and written and by who answers. All of it happens in one task.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace(Arc<AtomicU8>);

/// Nothing is asked, or an answer is on its way.
const QUIET: u8 = 0;
/// A head has begun.
const HEAD: u8 = 1;
/// A request is being worked on, and its body may be read.
const SERVING: u8 = 2;

impl Pace {
    pub(super) fn serving(&self) {
        self.0.store(SERVING, Ordering::Relaxed);
    }

    pub(super) fn quiet(&self) {
        self.0.store(QUIET, Ordering::Relaxed);
    }

    fn at(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection whose heads have to come in time.
#[derive(Debug)]
pub(super) struct Paced<S> {
    stream: S,
    pace: Pace,
    patience: Duration,
    /// Of the head that has begun, made when not all of it is there.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> Paced<S> {
    pub(super) fn new(stream: S, pace: Pace, patience: Duration) -> Self {
        Self { stream, pace, patience, timer: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        match Pin::new(&mut this.stream).poll_read(cx, buffer) {
            Poll::Ready(read) => {
                if this.pace.at() == QUIET && buffer.filled().len() > before {
                    this.pace.0.store(HEAD, Ordering::Relaxed);
                    this.timer = None;
                }
                Poll::Ready(read)
            }
            Poll::Pending if this.pace.at() == HEAD => {
                let patience = this.patience;
                let timer = this.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
                timer.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // What came was the beginning of a next request, and this one's answer is not over.
        if self.pace.at() == HEAD {
            self.pace.quiet();
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// How HTTP/2 begins has so many bytes, and no request is shorter.
const GREETING: usize = 24;

/// A connection whose first bytes have to come in time: servers of HTTP/2 wait for them without a clock.
#[derive(Debug)]
pub(super) struct Greeting<S> {
    stream: S,
    missing: usize,
    timer: Pin<Box<Sleep>>,
}

impl<S> Greeting<S> {
    pub(super) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, missing: GREETING, timer: Box::pin(tokio::time::sleep(patience)) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Greeting<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if this.missing > 0 {
            this.missing = this.missing.saturating_sub(buffer.filled().len() - before);
            if read.is_pending() {
                return this.timer.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Greeting<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);
    const LONG: Duration = Duration::from_secs(3600);

    fn paced() -> (Paced<DuplexStream>, DuplexStream, Pace) {
        let (near, far) = duplex(64);
        let pace = Pace::default();
        (Paced::new(near, pace.clone(), PATIENCE), far, pace)
    }

    async fn read(paced: &mut Paced<DuplexStream>) -> Option<io::Result<usize>> {
        tokio::time::timeout(LONG, paced.read(&mut [0; 64])).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_has_to_come_in_time_and_silence_may_last() {
        let (mut paced, mut far, pace) = paced();
        assert!(read(&mut paced).await.is_none(), "nobody asks anything");
        far.write_all(b"GET").await.unwrap();
        assert_eq!(read(&mut paced).await.unwrap().unwrap(), 3);
        let late = read(&mut paced).await.unwrap().unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        // One whose head was whole is left alone, in the middle of its body and after its answer.
        pace.serving();
        assert!(read(&mut paced).await.is_none());
        pace.quiet();
        assert!(read(&mut paced).await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_that_trickle_in_do_not_buy_time() {
        let (mut paced, mut far, _) = paced();
        let trickle = async {
            loop {
                far.write_all(b"x").await.unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let reading = async {
            let begun = tokio::time::Instant::now();
            while paced.read(&mut [0; 8]).await.is_ok() {}
            begun.elapsed()
        };
        tokio::select! {
            () = trickle => {}
            took = reading => assert!((PATIENCE..PATIENCE * 2).contains(&took), "{took:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_early_does_not_end_the_answer_before_it() {
        let (mut paced, mut far, pace) = paced();
        pace.quiet();
        far.write_all(b"GET /next").await.unwrap();
        assert_eq!(read(&mut paced).await.unwrap().unwrap(), 9);
        paced.write_all(b"more of the answer").await.unwrap();
        assert!(read(&mut paced).await.is_none());
    }
}
