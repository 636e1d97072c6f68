//! Prompts made before a clock starts, and the blocks engines will say they stored for them.

use std::sync::Arc;

use anyhow::{Context, ensure};
use kvlane_engine_adapters::model::{ChatPrompt, Model};
use kvlane_indexer::{BlockHasher, BlockSize, Namespace, TokenId};
use kvlane_router::preprocess::TokenCache;
use serde_json::{Value, json};

use super::scenario::{Scenario, Texts};
use crate::corpus::own_text;

/// Tokens in a block.
pub(super) const BLOCK: usize = 16;
const DOCUMENTS: usize = 10;
/// Questions of a conversation.
const TURNS: usize = 4;
/// Words of an answer, and of the questions after the first.
const ANSWER_WORDS: usize = 12;
const QUESTION_WORDS: usize = 24;
/// Long prompts of a client besides.
const BESIDE: usize = 24;

/// A conversation as it will be asked.
#[derive(Debug)]
pub(super) struct Conversation {
    /// The first message, written as JSON writes it.
    opening: Arc<str>,
    /// An answer and the next question, the same way.
    turns: Vec<(String, String)>,
    /// The last prompt, and how long each one before it was; each begins the next.
    pub(super) tokens: Vec<TokenId>,
    pub(super) names: Vec<u64>,
    ends: Vec<usize>,
}

impl Conversation {
    /// Whole blocks of a turn's prompt.
    pub(super) fn blocks(&self, turn: usize) -> usize {
        self.ends[turn] / BLOCK
    }

    pub(super) fn prompt_tokens(&self, turn: usize) -> usize {
        self.ends[turn]
    }
}

/// All conversations of a scenario.
#[derive(Debug)]
pub struct Catalogue {
    model: String,
    chunks: usize,
    pub(super) conversations: Vec<Conversation>,
    turns: usize,
    /// Conversations of one turn at the end, for a client besides.
    beside: usize,
}

/// Blocks that answers fill are named as no prompt's are.
pub(super) fn answer_block(number: u64, block: usize) -> u64 {
    1 << 63 | number << 16 | block as u64
}

/// What a body's last field says: which conversation, and which turn of it.
pub(super) fn place_of(number: u64) -> (usize, usize) {
    ((number / 8) as usize, (number % 8) as usize)
}

impl Catalogue {
    /// So many requests, `first` telling them from those of other catalogues.
    pub fn make(
        model: &Model,
        name: &str,
        scenario: &Scenario,
        requests: usize,
        first: u64,
    ) -> anyhow::Result<Self> {
        let turns = if scenario.texts == Texts::Shared { TURNS } else { 1 };
        let template = model.template.as_ref().context("the model has no chat template, expected one")?;
        let cache = TokenCache::new(1 << 30);
        // The same in every catalogue, or their documents would differ.
        let sample: String = (0..20).map(|seed| own_text(seed, 200)).collect();
        let per_word = model.tokenizer.encode(&sample, false)?.len() as f64 / 4000.0;
        let later = (turns - 1) * (ANSWER_WORDS + QUESTION_WORDS);
        // What is written around messages is about as long as this.
        let words =
            ((scenario.tokens.saturating_sub(16) as f64 / per_word) as usize).saturating_sub(later / 2);
        let documents: Vec<(String, Arc<str>)> = match scenario.texts {
            Texts::Fresh => Vec::new(),
            Texts::Shared => (0..DOCUMENTS as u64)
                .map(|n| {
                    let text = own_text(0xD0C0 + n, words);
                    let written = Value::from(text.as_str()).to_string();
                    (text, Arc::from(written))
                })
                .collect(),
        };
        let block_size = BlockSize::new(BLOCK as u32).context("a block's size")?;
        let hasher = BlockHasher::new(block_size, Namespace::default());
        let conversation = |n: usize, words: usize, turns: usize| -> anyhow::Result<Conversation> {
            let seed = first + (n * 16) as u64;
            let (text, opening) = match documents.get(n % DOCUMENTS) {
                Some((text, written)) => (text.clone(), written.clone()),
                None => {
                    let text = own_text(seed, words.max(1));
                    let written = Value::from(text.as_str()).to_string();
                    (text, Arc::from(written))
                }
            };
            let mut messages = vec![json!({"role": "user", "content": text})];
            let (mut said, mut ends, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
            for turn in 0..turns {
                if turn > 0 {
                    let answer = own_text(seed + 2 * turn as u64, ANSWER_WORDS);
                    let question = own_text(seed + 2 * turn as u64 + 1, QUESTION_WORDS);
                    said.push((
                        Value::from(answer.as_str()).to_string(),
                        Value::from(question.as_str()).to_string(),
                    ));
                    messages.push(json!({"role": "assistant", "content": answer}));
                    messages.push(json!({"role": "user", "content": question}));
                }
                let shown: Vec<_> =
                    messages.iter().filter_map(|message| message.as_object().cloned()).collect();
                let text = template.render(&ChatPrompt::new(&shown, 0)).context("the chat template")?;
                let longer = cache.encode(&model.tokenizer, 0, &text, false);
                ensure!(longer.starts_with(&tokens), "a prompt does not begin with the one before it");
                tokens = longer;
                ends.push(tokens.len());
            }
            let names = hasher.sequence(&tokens).into_iter().map(|hash| hash.0).collect();
            Ok(Conversation { opening, turns: said, tokens, names, ends })
        };
        let count = requests.div_ceil(turns);
        let mut conversations =
            (0..count).map(|n| conversation(n, words, turns)).collect::<anyhow::Result<Vec<_>>>()?;
        let beside = if scenario.beside.is_some() { BESIDE } else { 0 };
        for n in 0..beside {
            let words = scenario.beside.unwrap_or(0) as f64 / per_word;
            conversations.push(conversation(count + n, words as usize, 1)?);
        }
        Ok(Self { model: name.to_owned(), chunks: scenario.chunks, conversations, turns, beside })
    }

    /// Which conversations are asked.
    pub fn asked(&self) -> std::ops::Range<usize> {
        0..self.conversations.len() - self.beside
    }

    /// Which a client besides asks.
    pub fn beside(&self) -> std::ops::Range<usize> {
        self.conversations.len() - self.beside..self.conversations.len()
    }

    pub(super) fn turns(&self) -> usize {
        self.turns
    }

    /// A request's body.
    pub(super) fn body(&self, conversation: usize, turn: usize, into: &mut Vec<u8>) {
        let asked = &self.conversations[conversation];
        let mut put = |text: &str| into.extend_from_slice(text.as_bytes());
        put("{\"model\":\"");
        put(&self.model);
        put("\",\"stream\":true,\"ignore_eos\":true,\"max_tokens\":");
        put(&self.chunks.to_string());
        put(",\"messages\":[{\"role\":\"user\",\"content\":");
        put(&asked.opening);
        for (answer, question) in &asked.turns[..turn] {
            put("},{\"role\":\"assistant\",\"content\":");
            put(answer);
            put("},{\"role\":\"user\",\"content\":");
            put(question);
        }
        put("}],\"seed\":");
        put(&(conversation * 8 + turn).to_string());
        put("}");
    }
}
