//! What a trace is like: how much of it could be cached, and by how many caches of what size.

use std::collections::HashMap;

use serde::Serialize;

use super::Trace;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stats {
    pub requests: usize,
    pub seconds: f64,
    pub requests_per_s: f64,
    pub input_tokens: Spread,
    pub output_tokens: Spread,
    /// Different names, and how many stretches there are in all.
    pub distinct_blocks: usize,
    pub blocks: usize,
    /// Share of prompt tokens that one endless cache would have found.
    pub cacheable_pct: f64,
    /// Requests of whose prompt three quarters were there before.
    pub continuing_pct: f64,
    /// Share of stretches that belong to the most asked-for hundredth of names.
    pub hottest_hundredth_pct: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub mean: f64,
    pub p50: usize,
    pub p95: usize,
    pub max: usize,
}

impl Spread {
    fn of(mut values: Vec<usize>) -> Self {
        values.sort_unstable();
        let last = values.len().saturating_sub(1);
        let at = |share: f64| values.get((last as f64 * share).round() as usize).copied().unwrap_or(0);
        let mean = values.iter().sum::<usize>() as f64 / values.len().max(1) as f64;
        Self { mean, p50: at(0.5), p95: at(0.95), max: at(1.0) }
    }
}

/// `hash_tokens` is what a name stands for.
pub fn stats(trace: &Trace, hash_tokens: usize) -> Stats {
    let mut uses: HashMap<(usize, u64), usize> = HashMap::new();
    let (mut cacheable, mut tokens, mut blocks, mut continuing) = (0, 0, 0, 0);
    for request in &trace.requests {
        let known = request
            .hash_ids
            .iter()
            .enumerate()
            .take_while(|(at, hash)| uses.contains_key(&(*at, **hash)))
            .count();
        cacheable += (known * hash_tokens).min(request.input_length);
        tokens += request.input_length;
        blocks += request.hash_ids.len();
        continuing += usize::from(known > 0 && 4 * known >= 3 * request.hash_ids.len());
        for (at, hash) in request.hash_ids.iter().enumerate() {
            *uses.entry((at, *hash)).or_default() += 1;
        }
    }
    let mut counts: Vec<usize> = uses.values().copied().collect();
    counts.sort_unstable_by(|one, other| other.cmp(one));
    let hottest: usize = counts.iter().take(counts.len().div_ceil(100)).sum();
    let (requests, seconds) = (trace.requests.len(), trace.seconds());
    let pct = |part: usize, of: usize| 100.0 * part as f64 / of.max(1) as f64;
    Stats {
        requests,
        seconds,
        requests_per_s: requests as f64 / seconds.max(1e-9),
        input_tokens: Spread::of(trace.requests.iter().map(|request| request.input_length).collect()),
        output_tokens: Spread::of(trace.requests.iter().map(|request| request.output_length).collect()),
        distinct_blocks: counts.len(),
        blocks,
        cacheable_pct: pct(cacheable, tokens),
        continuing_pct: pct(continuing, requests),
        hottest_hundredth_pct: pct(hottest, blocks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_be_cached_is_what_was_seen_from_the_start_on() {
        let line = |at: usize, tokens: usize, hashes: &[u64]| {
            format!(
                r#"{{"timestamp":{at},"input_length":{tokens},"output_length":10,"hash_ids":{hashes:?}}}"#
            )
        };
        // The third shares its second stretch and not its first, which is worth nothing.
        let lines = [line(0, 1536, &[1, 2, 3]), line(1000, 1836, &[1, 2, 3, 4]), line(2000, 1024, &[9, 2])];
        let found = stats(&Trace::parse(&lines.join("\n"), "t").unwrap(), 512);
        assert_eq!((found.requests, found.seconds, found.requests_per_s), (3, 2.0, 1.5));
        assert!((found.cacheable_pct - 100.0 * 1536.0 / 4396.0).abs() < 1e-9, "{found:?}");
        assert_eq!((found.distinct_blocks, found.blocks), (5, 9));
        assert!((found.continuing_pct - 100.0 / 3.0).abs() < 1e-9);
        assert_eq!(
            (found.input_tokens.p50, found.input_tokens.max, found.output_tokens.p95),
            (1536, 1836, 10)
        );
    }
}
