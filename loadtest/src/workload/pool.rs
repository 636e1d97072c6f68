//! What conversations begin with: documents that many share, and perhaps a part of their own.

use std::sync::Arc;

use rand::RngExt;
use rand::rngs::StdRng;
use rand_distr::{Distribution, Zipf};

use crate::corpus::{Corpus, opening, own_text};

#[derive(Debug)]
pub struct Pool {
    topics: Vec<Arc<str>>,
    corpus: Corpus,
    /// Which are asked about how often; all equally when none.
    popularity: Option<Zipf<f64>>,
    /// Words after the shared part that nobody else has.
    own_words: usize,
    seed: u64,
}

/// Groups of prompts that share a part: groups × ratio × popularity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Groups {
    pub count: usize,
    /// Words of a first prompt.
    pub words: (usize, usize),
    /// Share of them that the whole group has.
    pub ratio: f64,
    /// Zipf's exponent; 0 for equally often.
    pub zipf: f64,
}

impl Pool {
    /// Documents, all of which is shared.
    pub fn documents(corpus: Corpus, zipf: f64) -> Self {
        Self::new(corpus, zipf, 0, 0)
    }

    pub fn groups(groups: Groups, seed: u64) -> Self {
        let (few, many) = groups.words;
        let shared = |words: usize| ((words as f64 * groups.ratio) as usize).max(1);
        let own = ((few + many) as f64 / 2.0 * (1.0 - groups.ratio)) as usize;
        let corpus = Corpus::synthetic(seed, groups.count, (shared(few), shared(many)));
        Self::new(corpus, groups.zipf, own, seed)
    }

    fn new(corpus: Corpus, zipf: f64, own_words: usize, seed: u64) -> Self {
        let topics = corpus.documents.iter().map(|document| document.topic.as_str().into()).collect();
        let popularity = (zipf > 0.0).then(|| Zipf::new(corpus.documents.len() as f64, zipf).ok()).flatten();
        Self { topics, corpus, popularity, own_words, seed }
    }

    /// The first question of a conversation, and its topic.
    pub(super) fn opening(&self, number: u64, random: &mut StdRng) -> (Arc<str>, String) {
        let count = self.topics.len();
        let at = match &self.popularity {
            Some(zipf) => (zipf.sample(random) as usize).clamp(1, count) - 1,
            None => random.random_range(0..count),
        };
        let document = &self.corpus.documents[at];
        let text = if self.own_words > 0 {
            let own = own_text(self.seed.rotate_left(32) ^ number, self.own_words);
            format!("{}\n\n{own}\n\nWhat of the text above applies to this case?", document.text)
        } else {
            opening(document)
        };
        (self.topics[at].clone(), text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn a_group_shares_its_part_and_no_more() {
        let groups = Groups { count: 5, words: (400, 400), ratio: 0.75, zipf: 1.2 };
        let pool = Pool::groups(groups, 9);
        let mut random = StdRng::seed_from_u64(1);
        let mut of_topic: std::collections::BTreeMap<Arc<str>, Vec<String>> =
            std::collections::BTreeMap::new();
        for number in 0..400 {
            let (topic, text) = pool.opening(number, &mut random);
            of_topic.entry(topic).or_default().push(text);
        }
        let counts: Vec<usize> = of_topic.values().map(Vec::len).collect();
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(of_topic.len() == 5 && most > &(3 * least), "some are asked about more: {counts:?}");
        let texts = &of_topic.values().next().unwrap()[..2];
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let (one, other) = (words(&texts[0]), words(&texts[1]));
        let common = one.iter().zip(&other).take_while(|(one, other)| one == other).count();
        let share = common as f64 / one.len() as f64;
        assert!((0.65..0.85).contains(&share), "{share}");
    }
}
