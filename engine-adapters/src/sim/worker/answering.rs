//! How an answer flows back: at once, or chunk by chunk as its tokens come out.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt};
use hyper::Response;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::driver::Progress;
use super::generate::{Author, Plan};
use super::http::{Body, ok};
use super::reply::{self, Reply, Usage};

/// Why a connection ends without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the engine is gone")]
pub(super) struct EngineGone;

/// A reply under way.
pub(super) struct Answer {
    pub(super) author: Arc<Author>,
    pub(super) block_tokens: usize,
    pub(super) reply: Reply,
    pub(super) plans: Vec<Plan>,
}

impl Answer {
    /// What one choice cost. Choices of one prompt share it, and its first one counts it.
    fn usage(&self, plan: &Plan, cached_tokens: usize) -> Usage {
        let completion_tokens = plan.answer.len();
        if plan.choice > 0 {
            return Usage { completion_tokens, ..Usage::default() };
        }
        let full = plan.prompt.len() / self.block_tokens * self.block_tokens;
        Usage {
            prompt_tokens: plan.prompt.len(),
            completion_tokens,
            cached_tokens,
            created_cache_tokens: full.saturating_sub(cached_tokens),
        }
    }

    /// At once, when it is complete.
    pub(super) async fn whole(
        self,
        readers: Vec<watch::Receiver<Progress>>,
    ) -> Result<Response<Body>, EngineGone> {
        let mut usage = Usage::default();
        for (plan, mut reader) in self.plans.iter().zip(readers) {
            let done = reader.wait_for(|progress| progress.cached_tokens.is_some()).await;
            let cached = done.map_err(|_| EngineGone)?.cached_tokens.unwrap_or(0);
            usage.add(self.usage(plan, cached));
        }
        Ok(ok(&self.reply.whole(&self.plans, usage, &self.author.model.tokenizer)))
    }

    /// Every choice's chunks as they come, then what it cost, then the end.
    pub(super) fn stream(
        self,
        readers: Vec<watch::Receiver<Progress>>,
        include_usage: bool,
        close_after: Option<u64>,
    ) -> impl Stream<Item = io::Result<Bytes>> + Send {
        let answer = Arc::new(self);
        let total = Arc::new(Mutex::new(Usage::default()));
        let choices: Vec<_> = readers
            .into_iter()
            .enumerate()
            .map(|(index, reader)| choice(answer.clone(), index, reader, total.clone()).boxed())
            .collect();
        let end = stream::once(async move {
            let usage = *total.lock();
            let last =
                if include_usage { vec![answer.reply.usage(usage), reply::DONE] } else { vec![reply::DONE] };
            stream::iter(last.into_iter().map(Ok))
        });
        stream::select_all(choices).chain(end.flatten()).scan(0, move |sent, chunk| {
            *sent += 1;
            let cut = close_after.is_some_and(|after| *sent > after);
            let chunk = if cut { Err(gone()) } else { chunk };
            std::future::ready(Some(chunk))
        })
    }
}

/// One choice: an opening, then a chunk whenever more tokens are out.
fn choice(
    answer: Arc<Answer>,
    index: usize,
    reader: watch::Receiver<Progress>,
    total: Arc<Mutex<Usage>>,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let opening = answer.reply.opening(index, &answer.plans[index]);
    stream::unfold(Some((reader, opening, 0)), move |state| {
        let (answer, total) = (answer.clone(), total.clone());
        async move {
            let (mut reader, opening, sent) = state?;
            let plan = &answer.plans[index];
            // The opening, too, goes out when there is a first token, as vLLM's does.
            let progress =
                reader.wait_for(|progress| progress.generated > sent).await.map(|progress| *progress);
            let Ok(progress) = progress else { return Some((Err(gone()), None)) };
            if let Some(opening) = opening {
                return Some((Ok(opening), Some((reader, None, sent))));
            }
            let to = progress.generated.min(plan.answer.len());
            let chunk = answer.reply.chunk(index, plan, sent, to, &answer.author.model.tokenizer);
            if to < plan.answer.len() {
                return Some((Ok(chunk), Some((reader, None, to))));
            }
            total.lock().add(answer.usage(plan, progress.cached_tokens.unwrap_or(0)));
            Some((Ok(chunk), None))
        }
    })
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, EngineGone)
}
