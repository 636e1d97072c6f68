//! Traces made up: conversations over documents that some share, arriving at random.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp1, Zipf};

use super::{HASH_TOKENS, Recorded, Trace};

/// What a made-up trace is like.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    pub requests: usize,
    /// Conversations that begin each second, on average.
    pub conversations_per_s: f64,
    pub turns: (usize, usize),
    /// Documents that conversations begin with, and how unevenly they are asked about (0: equally).
    pub groups: usize,
    pub zipf: f64,
    /// Tokens of a first prompt, and the share of it that is the document's.
    pub prompt_tokens: (usize, usize),
    pub shared: f64,
    pub output_tokens: (usize, usize),
    /// Mean seconds between an answer and the next question.
    pub think_s: f64,
    pub seed: u64,
}

/// Seconds a made-up answer takes for each token, between its question and the next one.
const PER_TOKEN_S: f64 = 0.03;

pub fn make(recipe: &Recipe) -> Trace {
    let mut random = StdRng::seed_from_u64(recipe.seed);
    let zipf = (recipe.zipf > 0.0).then(|| Zipf::new(recipe.groups as f64, recipe.zipf).ok()).flatten();
    let mut requests: Vec<Recorded> = Vec::new();
    let (mut begins_s, mut next_name): (f64, u64) = (0.0, recipe.groups as u64 * GROUP_NAMES);
    let between = |(few, many): (usize, usize), random: &mut StdRng| random.random_range(few..=many.max(few));
    let mut look = recipe.requests;
    // Until nothing that is yet to begin could be among those asked for.
    loop {
        if requests.len() >= look {
            let before = |request: &&Recorded| request.timestamp < begins_s * 1e3;
            if requests.iter().filter(before).count() >= recipe.requests {
                break;
            }
            look = requests.len() + requests.len() / 8 + 1;
        }
        let drawn: f64 = Exp1.sample(&mut random);
        begins_s += drawn / recipe.conversations_per_s;
        let group = match &zipf {
            Some(zipf) => zipf.sample(&mut random) as u64 - 1,
            None => random.random_range(0..recipe.groups as u64),
        };
        let mut tokens = between(recipe.prompt_tokens, &mut random);
        let shared = (tokens as f64 * recipe.shared) as usize / HASH_TOKENS;
        let mut names: Vec<u64> = (0..shared as u64).map(|at| group * GROUP_NAMES + at).collect();
        let mut at_s = begins_s;
        for _ in 0..between(recipe.turns, &mut random) {
            while names.len() < tokens.div_ceil(HASH_TOKENS) {
                names.push(next_name);
                next_name += 1;
            }
            let output_length = between(recipe.output_tokens, &mut random);
            let (timestamp, input_length) = ((at_s * 1e3).round(), tokens);
            requests.push(Recorded { timestamp, input_length, output_length, hash_ids: names.clone() });
            let thinks: f64 = Exp1.sample(&mut random);
            at_s += output_length as f64 * PER_TOKEN_S + thinks * recipe.think_s;
            // The last stretch is only a part of what it becomes.
            if tokens % HASH_TOKENS != 0 {
                names.pop();
            }
            tokens += output_length + random.random_range(20..100);
        }
    }
    requests.sort_by(|one, other| one.timestamp.total_cmp(&other.timestamp));
    requests.truncate(recipe.requests);
    Trace { requests }
}

/// Names set aside for each document: more than any prompt has stretches.
const GROUP_NAMES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::stats;

    #[test]
    fn a_made_up_trace_is_its_seed_and_as_shared_as_asked_for() {
        let recipe = Recipe {
            requests: 400,
            conversations_per_s: 2.0,
            turns: (1, 1),
            groups: 4,
            zipf: 1.0,
            prompt_tokens: (5120, 5120),
            shared: 0.8,
            output_tokens: (100, 200),
            think_s: 1.0,
            seed: 5,
        };
        let trace = make(&recipe);
        assert_eq!(trace, make(&recipe));
        assert_ne!(trace, make(&Recipe { seed: 6, ..recipe }));
        let found = stats(&trace, HASH_TOKENS);
        assert!((found.cacheable_pct - 80.0).abs() < 2.0, "{found:?}");
        assert!((found.requests_per_s - 2.0).abs() < 0.4, "{found:?}");
        // Turns resend what was said.
        let chats = stats(&make(&Recipe { turns: (4, 4), shared: 0.0, ..recipe }), HASH_TOKENS);
        assert!(chats.continuing_pct > 50.0 && chats.cacheable_pct > 50.0, "{chats:?}");
        let path = std::env::temp_dir().join(format!("kvlane-made-{}.jsonl", std::process::id()));
        trace.write(&path).unwrap();
        assert_eq!(Trace::read(&path).unwrap(), trace);
        std::fs::remove_file(path).unwrap();
    }
}
