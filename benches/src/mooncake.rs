//! Requests of a Mooncake-format trace: lines of `{"timestamp", "input_length", "output_length", "hash_ids"}`,
//! where one id stands for 512 tokens and for everything before them.

use kvlane_indexer::BlockHash;
use serde::Deserialize;

use crate::random::{Random, mix};

const TOKENS_PER_ID: usize = 512;
const TOKENS_PER_BLOCK: usize = 16;

#[derive(Clone, Debug, Deserialize)]
pub struct Request {
    input_length: usize,
    hash_ids: Vec<u64>,
}

impl Request {
    /// The prompt's whole blocks of 16 tokens.
    pub fn blocks(&self) -> Vec<BlockHash> {
        let per_id = TOKENS_PER_ID / TOKENS_PER_BLOCK;
        let count = (self.input_length / TOKENS_PER_BLOCK).min(self.hash_ids.len() * per_id);
        let block = |at: usize| BlockHash(mix(self.hash_ids[at / per_id] << 8 | (at % per_id) as u64));
        (0..count).map(block).collect()
    }

    /// What requests of one conversation have in common: their first id of their own.
    pub fn conversation(&self) -> u64 {
        self.hash_ids.get(1).or(self.hash_ids.first()).copied().unwrap_or(0)
    }
}

/// Up to `limit` requests, and where they come from.
///
/// The file `KVLANE_TRACE` names, or, without it, a made-up trace. A file that cannot be read ends the bench:
/// numbers of another workload than the one asked for would mislead.
pub fn trace_requests(limit: usize) -> (String, Vec<Request>) {
    let Ok(path) = std::env::var("KVLANE_TRACE") else {
        return ("made-up trace".to_owned(), made_up(limit));
    };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => stop(&format!("KVLANE_TRACE is `{path}`, expected a readable file: {error}")),
    };
    let parse = |(at, line): (usize, &str)| match serde_json::from_str(line) {
        Ok(request) => request,
        Err(error) => {
            stop(&format!("KVLANE_TRACE line {} is no request of a Mooncake trace: {error}", at + 1))
        }
    };
    let requests: Vec<Request> = text.lines().take(limit).enumerate().map(parse).collect();
    let name =
        std::path::Path::new(&path).file_name().map_or(path.clone(), |n| n.to_string_lossy().into_owned());
    (name, requests)
}

#[expect(clippy::print_stderr, reason = "said to the person who runs the bench")]
fn stop(why: &str) -> ! {
    eprintln!("{why}");
    std::process::exit(2)
}

/// The shape of the conversation trace: everyone shares the first id, conversations open in bursts and come
/// back a few times with more, lengths have a long tail.
fn made_up(limit: usize) -> Vec<Request> {
    let mut random = Random::new(2024);
    let mut open: Vec<Vec<u64>> = Vec::new();
    let mut next_id = 1;
    let mut requests = Vec::with_capacity(limit);
    while requests.len() < limit {
        for _ in 0..=random.below(12) {
            // Two in five go on with a conversation, most likely a young one.
            let at = (random.unit().powi(2) * open.len() as f64) as usize;
            let mut ids = match open.len().checked_sub(at + 1) {
                Some(at) if random.below(5) < 2 => open.swap_remove(at),
                _ => vec![0],
            };
            // Log-normal-like growth: a median of a dozen ids, a tail of over a hundred.
            let normal: f64 = (0..12).map(|_| random.unit()).sum::<f64>() - 6.0;
            let grows = (12.0 * (1.1 * normal).exp()).clamp(1.0, 240.0) as u64;
            ids.extend(next_id..next_id + grows);
            next_id += grows;
            let input_length = ids.len() * TOKENS_PER_ID - random.below(TOKENS_PER_ID as u64) as usize;
            requests.push(Request { input_length, hash_ids: ids.clone() });
            open.push(ids);
            if open.len() > 600 {
                open.swap_remove(random.below(300) as usize);
            }
        }
    }
    requests.truncate(limit);
    requests
}
