//! Trains the built-in model's tokenizer on this repository's own text.
//!
//! `cargo run --release -p kvlane-engine-adapters --example train_tokenizer` writes
//! `engine-adapters/models/kvlane-small/tokenizer.json`: byte-level BPE, 4,096 tokens, split the way Llama 3
//! splits. The same text gives the same file; other text gives another model, so run it on purpose only.

#![allow(clippy::print_stdout, reason = "a command line program")]

use std::path::{Path, PathBuf};

use anyhow::Context;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, SplitDelimiterBehavior, TokenizerBuilder};

const VOCABULARY: usize = 4096;
const SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SPECIAL: [&str; 5] =
    ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"];

fn main() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the crate lies in the workspace")?;
    let mut files = Vec::new();
    collect(root, &mut files)?;
    files.sort();
    let mut texts = files.iter().map(std::fs::read_to_string).collect::<Result<Vec<_>, _>>()?;
    // The words of simulated answers, often enough that each becomes one token.
    let words = std::fs::read_to_string(root.join("engine-adapters/src/sim/words.txt"))?;
    let words: String = words.split_whitespace().flat_map(|word| [" ", word]).collect();
    texts.extend(std::iter::repeat_n(words, 200));

    let error = |error: tokenizers::Error| anyhow::anyhow!(error);
    let special = SPECIAL.map(|token| AddedToken::from(token, true));
    let mut trainer = BpeTrainerBuilder::new()
        .vocab_size(VOCABULARY)
        .min_frequency(2)
        .show_progress(false)
        .special_tokens(special.to_vec())
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let split = Split::new(SplitPattern::Regex(SPLIT.to_owned()), SplitDelimiterBehavior::Isolated, false);
    let pieces = Sequence::new(vec![split.map_err(error)?.into(), ByteLevel::new(false, true, false).into()]);
    let mut tokenizer = TokenizerBuilder::new()
        .with_model(BPE::default())
        .with_normalizer(None::<tokenizers::NormalizerWrapper>)
        .with_pre_tokenizer(Some(pieces))
        .with_post_processor(None::<tokenizers::PostProcessorWrapper>)
        .with_decoder(Some(ByteLevel::default()))
        .build()
        .map_err(error)?;
    tokenizer.train(&mut trainer, texts.iter()).map_err(error)?;

    let begin = tokenizer.token_to_id(SPECIAL[0]).context("special tokens are in the vocabulary")?;
    let mark = TemplateProcessing::builder()
        .try_single(format!("{} $A", SPECIAL[0]))
        .map_err(|error| anyhow::anyhow!("{error}"))?
        .special_tokens(vec![(SPECIAL[0], begin)])
        .build()?;
    let mut tokenizer: tokenizers::Tokenizer = tokenizer.into();
    tokenizer.with_post_processor(Some(mark));
    let path = root.join("engine-adapters/models/kvlane-small/tokenizer.json");
    tokenizer.save(&path, false).map_err(error)?;
    println!("{}: {} tokens from {} files", path.display(), tokenizer.get_vocab_size(true), files.len());
    Ok(())
}

/// The project's prose and code; not what was generated or captured.
fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if !name.starts_with('.') && !["target", "models", "fixtures", "node_modules"].contains(&&*name) {
                collect(&path, files)?;
            }
        } else if path.extension().is_some_and(|kind| kind == "md" || kind == "rs") {
            files.push(path);
        }
    }
    Ok(())
}
