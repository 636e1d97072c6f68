//! What turns a request into tokens: a model's tokenizer and chat template, read from its directory.
//!
//! The simulated worker and the router both need them and must agree with the engine to the token, or cache
//! hits vanish silently. A small model of our own is built in, so that everything runs without any download.

mod chat_template;
mod messages;
mod python_json;
mod tokenizer;
mod word_cache;
mod words;

use std::collections::BTreeMap;
use std::path::Path;

use kvlane_indexer::TokenId;
use serde_json::Value;

pub use self::chat_template::{ChatPrompt, ChatTemplate, TemplateError};
pub use self::tokenizer::{TokenizeError, Tokenizer};

/// A model as its directory describes it.
#[derive(Debug)]
pub struct Model {
    pub name: String,
    pub tokenizer: Tokenizer,
    /// Base models have none.
    pub template: Option<ChatTemplate>,
    /// Tokens a prompt and its answer may have together, when the directory says so.
    pub max_len: Option<usize>,
    /// Tokens that end an answer.
    pub end_tokens: Vec<TokenId>,
}

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("model directory {dir}: {file} cannot be read: {error}")]
    Unreadable { dir: String, file: &'static str, error: std::io::Error },
    #[error("model directory {dir}: {file} is not JSON: {error}")]
    NotJson { dir: String, file: &'static str, error: serde_json::Error },
    #[error("model directory {dir}: tokenizer.json cannot be used: {error}")]
    Tokenizer { dir: String, error: String },
    #[error("model directory {dir}: the chat template cannot be compiled: {error}")]
    Template { dir: String, error: TemplateError },
}

/// The built-in model's files, by name.
const EMBEDDED: [(&str, &str); 4] = [
    ("tokenizer.json", include_str!("../models/kvlane-small/tokenizer.json")),
    ("tokenizer_config.json", include_str!("../models/kvlane-small/tokenizer_config.json")),
    ("chat_template.jinja", include_str!("../models/kvlane-small/chat_template.jinja")),
    ("config.json", include_str!("../models/kvlane-small/config.json")),
];

impl Model {
    /// The name of the built-in model.
    pub const EMBEDDED: &str = "kvlane-small";

    /// Reads a model directory in the form Hugging Face's tools write; its name is the directory's.
    pub fn load(dir: &Path) -> Result<Self, ModelError> {
        let name =
            dir.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned());
        Self::read(&name, &dir.display().to_string(), |file| match std::fs::read(dir.join(file)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        })
    }

    /// The small model that is built in: a tokenizer trained on this project's own text.
    pub fn embedded() -> Result<Self, ModelError> {
        Self::read(Self::EMBEDDED, Self::EMBEDDED, |file| {
            Ok(EMBEDDED.iter().find(|(name, _)| *name == file).map(|(_, text)| text.as_bytes().to_vec()))
        })
    }

    /// The same, as a directory that other programs can read.
    pub fn write_embedded(dir: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(dir)?;
        EMBEDDED.iter().try_for_each(|(name, text)| std::fs::write(dir.join(name), text))
    }

    fn read(
        name: &str,
        dir: &str,
        file: impl Fn(&'static str) -> std::io::Result<Option<Vec<u8>>>,
    ) -> Result<Self, ModelError> {
        let unreadable = |file, error| ModelError::Unreadable { dir: dir.to_owned(), file, error };
        let json = |name: &'static str| match file(name).map_err(|error| unreadable(name, error))? {
            None => Ok(Value::Null),
            Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| ModelError::NotJson {
                dir: dir.to_owned(),
                file: name,
                error,
            }),
        };
        let missing = || unreadable("tokenizer.json", std::io::ErrorKind::NotFound.into());
        let bytes = file("tokenizer.json").map_err(|error| unreadable("tokenizer.json", error))?;
        let tokenizer = Tokenizer::from_json(&bytes.ok_or_else(missing)?)
            .map_err(|error| ModelError::Tokenizer { dir: dir.to_owned(), error })?;

        let (tokens, config) = (json("tokenizer_config.json")?, json("config.json")?);
        let jinja = file("chat_template.jinja").map_err(|error| unreadable("chat_template.jinja", error))?;
        let template = match jinja {
            Some(bytes) => Some(Value::from(String::from_utf8_lossy(&bytes).into_owned())),
            None => json("chat_template.json")?.get("chat_template").or(tokens.get("chat_template")).cloned(),
        };
        let template = match template {
            None | Some(Value::Null) => None,
            Some(source) => Some(
                ChatTemplate::new(&source, special_tokens(&tokens))
                    .map_err(|error| ModelError::Template { dir: dir.to_owned(), error })?,
            ),
        };
        let end_tokens = end_tokens(&json("generation_config.json")?, &config, &tokens, &tokenizer);
        Ok(Self {
            name: name.to_owned(),
            template,
            max_len: max_len(&config, &tokens),
            end_tokens,
            tokenizer,
        })
    }
}

/// A special token is a string, or an object with its text and flags.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// The special tokens templates may name, such as `bos_token`.
fn special_tokens(config: &Value) -> BTreeMap<String, String> {
    ["bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), token_text(config.get(name)?)?.to_owned())))
        .collect()
}

fn end_tokens(generation: &Value, config: &Value, tokens: &Value, tokenizer: &Tokenizer) -> Vec<TokenId> {
    let ids = |value: &Value| match value {
        Value::Array(ids) => ids.iter().filter_map(Value::as_u64).map(|id| id as TokenId).collect(),
        value => value.as_u64().map(|id| vec![id as TokenId]).unwrap_or_default(),
    };
    let mut end: Vec<TokenId> =
        generation.get("eos_token_id").or(config.get("eos_token_id")).map_or(Vec::new(), ids);
    // The tokenizer's own comes first: it is the one the template closes a message with.
    if let Some(id) = tokens.get("eos_token").and_then(token_text).and_then(|text| tokenizer.id(text)) {
        end.retain(|other| *other != id);
        end.insert(0, id);
    }
    end
}

fn max_len(config: &Value, tokens: &Value) -> Option<usize> {
    let of = |value: &Value| value.get("max_position_embeddings")?.as_u64();
    of(config)
        .or_else(|| of(config.get("text_config")?))
        // Transformers writes an absurd number here when nobody has said.
        .or_else(|| tokens.get("model_max_length")?.as_u64().filter(|len| *len < 1 << 32))
        .map(|len| len as usize)
}

#[cfg(test)]
mod tests;
